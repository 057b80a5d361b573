package nodelifecycle

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ⚠ The stories of architecture 8: what must not happen when all, or nearly all,
// fall silent. Tokens are to be had at any time, so whatever holds an act back is
// the rules alone. News take up to 5 s, which is also the period that is waited: that
// a member sees one node fall and no other for a whole period is what must not be.
const (
	slowNews = 5 * time.Second
	outage   = 10 * time.Minute
)

// allSilent makes all nodes silent within a second.
func allSilent(f *fleet, but ...string) {
	for _, name := range f.names() {
		if len(but) == 0 || name != but[0] {
			f.silence(name)
			time.Sleep(time.Second / 20)
		}
	}
}

// unknown counts the nodes that are written Unknown.
func unknown(f *fleet) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, one := range f.nodes {
		if status, _ := statusOf(one, corev1.NodeReady); status == "Unknown" {
			n++
		}
	}
	return n
}

func forSeeds(t *testing.T, run func(t *testing.T, seed uint64)) {
	t.Helper()
	seeds := 10
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { t.Parallel(); run(t, uint64(seed)) }) //nolint:gosec // small
	}
}

// All zones silent in the same second: in ten minutes no token is used; one node
// back: nobody else within a grace period; and after it the others, for that is what
// the rules ask for then.
func TestAllZonesSilentInTheSameSecond(t *testing.T) {
	t.Parallel()
	forSeeds(t, func(t *testing.T, seed uint64) {
		inFleet(t, seed, 4, 12, slowNews, func(t *testing.T, f *fleet) {
			allSilent(f)
			time.Sleep(outage)
			if taken, asked := f.evicted(); len(taken) > 0 || asked > 0 {
				t.Errorf("in %s of all being down %d tokens were asked for, and tainted were %v", outage, asked, taken)
			}
			if n := unknown(f); n != 12 {
				t.Errorf("%d nodes are Unknown, want all 12", n)
			}
			f.wake("n00")
			time.Sleep(f.policy.NodeMonitorGracePeriod)
			if taken, asked := f.evicted(); len(taken) > 0 || asked > 0 {
				t.Errorf("within a grace period of one that is back %d tokens were asked for, and tainted were %v", asked, taken)
			}
			time.Sleep(time.Minute)
			if taken, _ := f.evicted(); len(taken) != 6 { // the zone of n00 is partial: rate 0
				t.Errorf("after it %v were tainted, want the 6 of the other zone", taken)
			}
		})
	})
}

// The same where the members change in the middle, and all of them are others by the
// end: what was known of the outage is known to who comes.
func TestMembersChangeWhileAllAreDown(t *testing.T) {
	t.Parallel()
	forSeeds(t, func(t *testing.T, seed uint64) {
		inFleet(t, seed, 3, 8, slowNews, func(t *testing.T, f *fleet) {
			allSilent(f)
			for i := range 3 {
				time.Sleep(outage / 4)
				f.members[0].stop()
				time.Sleep(10 * time.Second)
				f.start(3, i)
			}
			time.Sleep(outage / 4)
			f.wake("n01")
			time.Sleep(10 * time.Second)
			for i := range 3 { // and once more, while the grace period runs
				f.members[0].stop()
				f.start(3, i)
			}
			time.Sleep(f.policy.NodeMonitorGracePeriod - 10*time.Second)
			if taken, asked := f.evicted(); len(taken) > 0 || asked > 0 {
				t.Errorf("%d tokens were asked for, and tainted were %v", asked, taken)
			}
		})
	})
}

// All silent but one after the other, one every 3 s: as long as it grows nobody is
// tainted, and then all are down. News take half a second here, so that no member
// goes a period without any.
func TestSilentOneAfterTheOtherUntilAllAre(t *testing.T) {
	t.Parallel()
	forSeeds(t, func(t *testing.T, seed uint64) {
		inFleet(t, seed, 4, 12, 500*time.Millisecond, func(t *testing.T, f *fleet) {
			for _, name := range f.names() { // 36 s: less than a grace period
				f.silence(name)
				time.Sleep(3 * time.Second)
			}
			time.Sleep(outage)
			if taken, asked := f.evicted(); len(taken) > 0 || asked > 0 {
				t.Errorf("%d tokens were asked for, and tainted were %v", asked, taken)
			}
		})
	})
}

// A growth that does not end is waited for, for a grace period: then the first are
// tainted.
func TestSilentOneAfterTheOtherForLong(t *testing.T) {
	t.Parallel()
	inFleet(t, 1, 2, 60, time.Second, func(t *testing.T, f *fleet) {
		names := f.names()
		grace := f.policy.NodeMonitorGracePeriod
		go func() {
			for _, name := range names[:24] {
				f.silence(name)
				time.Sleep(3 * time.Second)
			}
		}()
		time.Sleep(grace + grace - 2*time.Second) // the first is Unknown after one, told by whole seconds
		if taken, _ := f.evicted(); len(taken) > 0 {
			t.Errorf("while more fall silent %v were tainted", taken)
		}
		time.Sleep(10 * time.Second)
		if taken, _ := f.evicted(); len(taken) == 0 {
			t.Error("after a grace period of that nobody was tainted")
		}
		time.Sleep(time.Minute)
	})
}

// One zone dies and the other lives: it is tainted, soon after it is known. The
// rules above hold nobody back for ever.
func TestOneZoneDies(t *testing.T) {
	t.Parallel()
	inFleet(t, 1, 3, 12, slowNews, func(t *testing.T, f *fleet) {
		for i, name := range f.names() {
			if i%2 == 0 {
				f.silence(name)
			}
		}
		time.Sleep(f.policy.NodeMonitorGracePeriod + 5*time.Second)
		if taken, _ := f.evicted(); len(taken) > 0 {
			t.Errorf("before a period has passed %v were tainted", taken)
		}
		time.Sleep(20 * time.Second)
		if taken, _ := f.evicted(); len(taken) != 6 {
			t.Errorf("tainted were %v, want 6", taken)
		}
	})
}
