// Package controller is the frame every role runs in: it claims partitions,
// fills a cache for each, and brings every key to its Reconciler, serially per
// key, until it has succeeded on complete and fresh inputs. It judges nothing
// and knows neither NATS nor the API server.
//
// The rules are those of section 6 of the architecture; each has a test of its
// name.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Reader is what a decision may look at: see cache.Reader.
type Reader = cache.Reader

// Reconciler brings one key to the state it should have. Reconcile is called
// serially per key and in parallel for different keys. It decides from a View,
// asks Guard before every side effect, and never writes what changes nothing.
//
// ctx ends when the partition is lost. An error is retried as Class says.
type Reconciler interface {
	Reconcile(ctx context.Context, key event.Key) (Result, error)
}

// Result is what a successful Reconcile asks for.
type Result struct {
	// After is when to look again if no event comes before; zero: on the next
	// event. A later run replaces it.
	After time.Duration
}

// Definition is one role.
type Definition struct {
	// Role names the deployment, the queue and the durable positions.
	Role string
	// By says by what the role's keys are partitioned: ByKey or ByNamespace.
	By protocol.By
	// Kind is the kind that keys name, for dead letters; empty: that of the
	// first input.
	Kind event.Kind
	// KindOf is Kind for roles whose keys name objects of several kinds; nil: all are
	// of Kind.
	KindOf func(key event.Key) event.Kind
	// Explain says in a few lines, for people, what the role knows of a key that no
	// object shows; nil: nothing.
	Explain func(p *Partition, key event.Key) []string
	// Pause knows what is paused; nil: nothing ever is.
	Pause Pause
	// Parts are pieces of the role that can be switched apart, each with its mode
	// while none is set: see Partition.Mode.
	Parts map[string]string
	// Pending returns what this member has still to do, for those who ask, in any
	// order, as a list that is the caller's; nil: nothing is told. It must not block.
	Pending func() []Pending
	// Host is where this replica runs, for people.
	Host string
	// Workers is how many keys are reconciled at once where Config does not say; 0: 5.
	Workers int
	// Inputs are the kinds of which a member reads the partitions it holds.
	// Outputs belong to them.
	Inputs []cache.Input
	// Wide are small kinds that every member reads whole.
	Wide []cache.Input
	// Ages is how old an input may be where Config allows more.
	Ages map[event.Kind]Ages
	// Keys returns the keys that a change of an input or a wide kind concerns:
	// from current inputs and current outputs ⚠, which p.View shows, never from
	// what only an earlier version said. It must not block; it is called by two
	// goroutines, that of the partition's feed and that of the wide kinds'.
	Keys func(p *Partition, c cache.Change) []event.Key
	// All returns every key of the partition, of inputs and of outputs; called
	// whenever the inputs have become complete.
	All func(p *Partition) []event.Key
	// Concerns returns the keys that an object of an input concerns as things
	// stand, for those who ask; it changes nothing. nil: none but itself.
	Concerns func(p *Partition, kind event.Kind, key event.Key) []event.Key
	// Compare says, in shadow mode, how what Partition.Intend was told differs
	// from what the inputs show now; nil: the hashes of the writes are compared.
	Compare func(p *Partition, key event.Key, effect any) []Difference
	// New returns the reconciler of a partition that has been claimed. If it is
	// an io.Closer, it is closed when the partition has ended.
	New func(p *Partition) Reconciler
	// Clock is the cluster's time. Without one nothing destructive is allowed.
	Clock Clock
	// Classify sorts the errors of Reconcile that are not the frame's own; nil:
	// all are retried.
	Classify func(err error) Class
}

// Ages is how old an input may be at most. Zero: as Config says.
type Ages struct {
	Harmless, Destructive time.Duration
}

func (d *Definition) validate() error {
	switch {
	case d.Role == "":
		return errors.New("a role has no name")
	case d.By != protocol.ByKey && d.By != protocol.ByNamespace:
		return fmt.Errorf("role %s is partitioned by nothing", d.Role)
	case len(d.Inputs) == 0:
		return fmt.Errorf("role %s reads nothing", d.Role)
	case d.Keys == nil || d.All == nil || d.New == nil:
		return fmt.Errorf("role %s lacks Keys, All or New", d.Role)
	}
	for part, mode := range d.Parts {
		if part == "" || !ValidMode(mode) {
			return fmt.Errorf("mode of part %q of role %s is %q; it must be active, shadow or off", part, d.Role, mode)
		}
	}
	if d.Kind == "" {
		d.Kind = d.Inputs[0].Kind
	}
	return nil
}

// defaultWorkers is how many keys a role reconciles at once that says nothing.
// Source: kube-controller-manager v1.37, --concurrent-endpoint-syncs and its siblings.
const defaultWorkers = 5

func (d Definition) workers(c Config) int { return cmp.Or(c.Workers, d.Workers, defaultWorkers) }
