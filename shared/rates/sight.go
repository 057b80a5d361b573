package rates

import (
	"time"

	"github.com/millrace-io/millrace/shared/tokenbucket"
)

// sight is what one member knows of a bucket. Instants are its own, by a clock
// that is a little slow, where they are not the bucket's.
//
// The bucket's clock is a lower estimate that all members carry on together: a
// write says what it was when the tokens were asked for, so a member that sees
// the write knows that it is later than that by now. Two members never differ in
// their estimates by more than what the bound allows, since a member that is
// further ahead gives that up; so it does not matter which of them takes. ⚠
type sight struct {
	rev     uint64 // 0: there is no bucket
	account account
	// offset is what the bucket's clock is ahead of ours.
	offset time.Duration
	// confirmed is when each part of the limit was last seen to be confirmed.
	confirmed struct{ rate, burst time.Duration }
}

// after is the sight that follows s when another revision is seen, now.
func (s sight) after(rev uint64, a account, now time.Duration) sight {
	next := sight{rev: rev, account: a, offset: a.now - now, confirmed: s.confirmed}
	if s.rev != 0 && a.serial == s.account.serial+1 {
		// None was missed: our own estimate holds unless it is too far ahead. Who
		// missed one cannot say by how much others have corrected theirs since.
		next.offset = min(max(s.offset, next.offset), next.offset+lead)
	}
	if s.rev == 0 || a.confirmed.rate != s.account.confirmed.rate || a.limit.rate != s.account.limit.rate {
		next.confirmed.rate = now
	}
	if s.rev == 0 || a.confirmed.burst != s.account.confirmed.burst || a.limit.burst != s.account.limit.burst {
		next.confirmed.burst = now
	}
	return next
}

// wrote is the sight after a write of our own, which was decided on s: its
// instants are exact.
func (s sight) wrote(rev uint64, a account, now time.Duration) sight {
	next := s.after(rev, a, now)
	next.offset = s.offset
	if s.rev == 0 {
		next.offset = a.now - now
	}
	return next
}

// force is the limit that holds for a member of this setting: of each part the
// smaller, until those who have it have not taken for a while.
func (s sight) force(own limit, now time.Duration) limit {
	force := own
	if now-s.confirmed.rate < raiseAfter {
		force.rate = min(own.rate, s.account.limit.rate)
	}
	if now-s.confirmed.burst < raiseAfter {
		force.burst = min(own.burst, s.account.limit.burst)
	}
	return force
}

// bucket is what there is to take from under a limit, on our clock.
func (s sight) bucket(force limit, now time.Duration) tokenbucket.Bucket {
	b := tokenbucket.Owing(s.account.debt, s.account.now-s.offset)
	return b.Change(s.account.limit.bucket(), force.bucket(), now)
}

// take is the account after n tokens; false if there are not as many.
func (s sight) take(own limit, n int, now time.Duration, taker string) (account, bool) {
	force := s.force(own, now)
	b, ok := s.bucket(force, now).Take(force.bucket(), n, now)
	if !ok {
		return account{}, false
	}
	a := s.account
	a.now, a.debt, a.limit, a.taker = now+s.offset, b.Debt(now), force, taker
	a.serial++
	a.spent += uint64(n) //nolint:gosec // not negative
	if own.rate <= force.rate {
		a.confirmed.rate++
	}
	if own.burst <= force.burst {
		a.confirmed.burst++
	}
	return a, true
}
