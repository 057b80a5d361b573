package rates

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/tokenbucket"
)

const (
	// second is what the bound allows besides rate and burst. Unit: time. Source:
	// architecture section 8. It pays for the three that follow.
	second = time.Second
	// lead is how far ahead of what a write says of the bucket's clock a member
	// may be who saw the write before it too. Unit: time. Source: ours; the feed
	// tells of a write within milliseconds, and whoever is told later loses what
	// flowed in meanwhile.
	lead = 50 * time.Millisecond
	// sooner is how much a burst that is small is traded for. Unit: time. Source:
	// ours; at a fast rate the bucket must hold what flows in between two writes
	// to it, or it overflows and the rate is not reached.
	sooner = second / 2

	// drift: a thousandth less is counted of what a clock says. Source: twice the
	// 500 ppm by which the kernel lets NTP slew it, ours fast and the observer's
	// slow. Without it a window of hours would exceed the bound.
	drift = 1000
	// raiseAfter is how long a smaller setting of another member holds after it
	// took last. Unit: time. Source: ours; in a roll-out old and new members act
	// by turns, and then the old ones no more.
	raiseAfter = 30 * time.Second
)

// limit is a setting: tokens/s and tokens.
type limit struct{ rate, burst float64 }

// bucket is the limit by which tokens are taken. Where the burst is less than
// half a second's worth the bucket holds that half second, and tokens live
// shorter by what flows in during the difference.
func (l limit) bucket() tokenbucket.Limit {
	return tokenbucket.Limit{Rate: l.rate, Burst: max(l.burst, l.rate*sooner.Seconds())}
}

// life is how long a token lives that is taken under this limit. Acts in a
// window t come from takes in a window t + life, and of these there are at most
// rate·(t + life + lead) + room, which is rate·(t + second) + burst.
func (l limit) life() time.Duration {
	traded := (l.bucket().Burst - l.burst) / l.rate
	return second - lead - time.Duration(traded*float64(time.Second))
}

// account is what stands in a bucket.
type account struct {
	// now is when it was written, by the bucket's own clock, and debt how long
	// after that it is full.
	now, debt time.Duration
	serial    uint64
	limit     limit
	// confirmed counts, for each part of the limit, the takes by members whose
	// own setting allows no more.
	confirmed struct{ rate, burst uint64 }
	spent     uint64
	taker     string
}

// opened is a bucket that was not there: its first writer has nothing from it.
func opened(own limit, taker string) account {
	return account{serial: rand.Uint64(), limit: own, taker: taker}.empty() //nolint:gosec // it only has to be another one
}

// empty is a without its tokens: what is not known is spent.
func (a account) empty() account {
	a.debt = max(a.debt, tokenbucket.Empty(a.limit.bucket(), 0).Debt(0))
	return a
}

// parse reads an account; what cannot be one is refused.
func parse(value []byte) (account, error) {
	var m millracev1.TokenBucket
	if err := proto.Unmarshal(value, &m); err != nil {
		return account{}, fmt.Errorf("reading a token bucket: %w", err)
	}
	a := account{
		now: m.GetNow().AsDuration(), debt: m.GetDebt().AsDuration(), serial: m.GetSerial(),
		limit: limit{m.GetRate(), m.GetBurst()}, spent: m.GetSpent(), taker: m.GetTaker(),
	}
	a.confirmed.rate, a.confirmed.burst = m.GetRateConfirmed(), m.GetBurstConfirmed()
	if !(a.limit.rate > 0) || !(a.limit.burst >= 1) || a.debt < 0 || a.now < 0 {
		return account{}, fmt.Errorf("reading a token bucket: %+v is none", a)
	}
	return a, nil
}

func (a account) marshal() []byte {
	b, err := proto.Marshal(&millracev1.TokenBucket{
		Now: durationpb.New(a.now), Debt: durationpb.New(a.debt), Serial: a.serial,
		Rate: a.limit.rate, Burst: a.limit.burst,
		RateConfirmed: a.confirmed.rate, BurstConfirmed: a.confirmed.burst,
		Spent: a.spent, Taker: a.taker,
	})
	if err != nil {
		panic("marshalling a message of our own: " + err.Error()) // only invalid UTF-8
	}
	return b
}
