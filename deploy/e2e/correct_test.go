package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// Contract: I4, and "correct" of issue 2. After thousands of random changes, with
// members joining and leaving all the while, slices say what pods do; and a pod
// that stays ready is never absent. Long form: CHANGES=10000 REPLICAS=1,2,4,8.
func TestCorrect(t *testing.T) {
	t.Parallel() // as its parts do
	changes, seed := number(t, "CHANGES", 1000), number(t, "SEED", 1)
	for _, replicas := range numbers(t, "REPLICAS", 1, 3) {
		t.Run(fmt.Sprintf("replicas=%d", replicas), func(t *testing.T) {
			ctx, f := begin(t, 3*time.Minute+time.Duration(changes)*50*time.Millisecond)
			_, members := startReady(ctx, t, f, replicas)
			w := prepare(ctx, t, f, prefixOf(t), uint64(seed), 90) //nolint:gosec // positive
			o := observe(ctx, t, f, w.prefix)

			churning, stop := context.WithCancel(ctx)
			c := &churn{t: t, f: f, target: replicas, members: members, rng: rand.New(rand.NewPCG(uint64(seed), 7))} //nolint:gosec // a seed is the point
			var churned sync.WaitGroup
			churned.Go(func() { c.run(churning) })
			began := time.Now()
			w.run(ctx, changes)
			took := time.Since(began)
			stop()
			churned.Wait()

			rest := o.awaitRest(ctx, t, f, 60*time.Second)
			t.Logf("%d changes in %s, %d joined, %d left, %d killed; at rest after %s; %d revisions of slices",
				w.changes.Load(), took.Round(time.Millisecond), c.joined, c.left, c.killed, rest.Round(time.Millisecond), o.written())
			o.noHoles(t, inputsMayBe)
		})
	}
}

// churn lets members join and leave, by request or by SIGKILL.
type churn struct {
	t       *testing.T
	f       *fleet.Fleet
	target  int
	members []*fleet.Member
	rng     *rand.Rand

	joined, left, killed int
}

func (c *churn) run(ctx context.Context) {
	tick := time.NewTicker(2500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			c.fill(context.WithoutCancel(ctx))
			return
		case <-tick.C:
			c.step(ctx)
		}
	}
}

func (c *churn) step(ctx context.Context) {
	if len(c.members) < c.target || len(c.members) == c.target && c.rng.IntN(3) == 0 {
		c.join(ctx)
		return
	}
	i := c.rng.IntN(len(c.members))
	m := c.members[i]
	c.members = append(c.members[:i:i], c.members[i+1:]...)
	if c.rng.IntN(2) == 0 {
		m.Kill()
		c.killed++
	} else {
		leave(c.t, m)
		c.left++
	}
}

func (c *churn) join(ctx context.Context) {
	n, _ := lanes.names.LoadOrStore("joined", new(counter))
	m, err := c.f.Member(ctx, "endpoints", fmt.Sprintf("joined-%d", n.(*counter).next())) //nolint:forcetypeassert // stored above
	if err != nil {
		if ctx.Err() == nil {
			c.t.Error(err)
		}
		return
	}
	c.t.Cleanup(func() { leave(c.t, m) })
	c.members = append(c.members, m)
	c.joined++
}

// fill brings the number of members back to what it should be.
func (c *churn) fill(ctx context.Context) {
	for len(c.members) < c.target && !c.t.Failed() {
		c.join(ctx)
	}
}
