package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// chance changes nodes and pods of a stage at random, from a seed.
type chance struct {
	*stage
	rng   *rand.Rand
	nodes []string
	made  int
}

// atRandom: taints come and go, with times of their own or none; pods come with
// any tolerations, which change. At every deletion the log's judge asks whether
// it was due, and at the end nothing may be left that is.
func (w *evictWorld) atRandom(ctx context.Context, t *testing.T, lasts time.Duration) {
	seed := uint64(number(t, "SEED", 1))                                   //nolint:gosec // positive
	c := &chance{stage: w.on(ctx, t), rng: rand.New(rand.NewPCG(seed, 5))} //nolint:gosec // a seed is the point
	c.nodes = c.stage.nodes(ctx, 12)
	for range 60 {
		c.anyPod(ctx)
	}
	changes := 0
	for ends := time.Now().Add(lasts); time.Now().Before(ends); changes++ {
		switch c.rng.IntN(4) {
		case 0:
			c.taint(ctx, c.anyNode(), c.anyTaints()...)
		case 1:
			c.anyPod(ctx)
		default:
			c.longerOrShorter(ctx)
		}
		pause(ctx, 25*time.Millisecond)
	}
	pause(ctx, 2*inTime)
	t.Logf("seed %d: %d changes, %d pods, %d deleted", seed, changes, c.made, c.log.deletions(c.ns))
	c.log.kept(t, c.ns, inTime)
}

func (c *chance) anyNode() string { return c.nodes[c.rng.IntN(len(c.nodes))] }

// anyTaints has a taint without a time under no key twice: one that goes and comes
// between two looks is not seen to have gone.
func (c *chance) anyTaints() (taints []corev1.Taint) {
	for _, key := range []string{"a", "b"} {
		if c.rng.IntN(3) == 0 {
			added := time.Now().Add(-time.Duration(c.rng.IntN(3)) * time.Second)
			taints = append(taints, noExecute("example.com/"+key, added))
		}
	}
	if c.rng.IntN(6) == 0 {
		c.made++
		taints = append(taints, noExecute(fmt.Sprintf("example.com/once-%d", c.made), time.Time{}))
	}
	return taints
}

func (c *chance) anyTolerations() (tolerations []corev1.Toleration) {
	for _, key := range []string{"example.com/a", "example.com/b", "example.com/a", ""} {
		if c.rng.IntN(4) > 0 {
			tolerations = append(tolerations, tolerate(key, int64(c.rng.IntN(8)-1)))
		}
	}
	c.rng.Shuffle(len(tolerations), func(i, j int) { tolerations[i], tolerations[j] = tolerations[j], tolerations[i] })
	return tolerations
}

func (c *chance) anyPod(ctx context.Context) {
	c.made++
	changes := []change{tolerating(c.anyTolerations()...)}
	if c.rng.IntN(3) == 0 {
		changes = append(changes, lingering)
	}
	c.pod(ctx, fmt.Sprintf("p-%04d", c.made), c.anyNode(), changes...)
}

// longerOrShorter changes the seconds of one toleration of a pod, which is all
// that the API server lets change besides adding one.
func (c *chance) longerOrShorter(ctx context.Context) {
	living := c.log.living(c.ns)
	if len(living) == 0 {
		return
	}
	pods := c.api.CoreV1().Pods(c.ns)
	p, err := pods.Get(ctx, living[c.rng.IntN(len(living))], metav1.GetOptions{})
	if err == nil && p.DeletionTimestamp == nil {
		i := c.rng.IntN(len(p.Spec.Tolerations))
		p.Spec.Tolerations[i].TolerationSeconds = new(int64(c.rng.IntN(10)))
		_, err = pods.Update(ctx, p, metav1.UpdateOptions{})
	}
	if !apierrors.IsConflict(err) {
		c.must(gone(err))
	}
}
