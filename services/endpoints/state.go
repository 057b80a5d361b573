package endpoints

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// guardKey is where a reconcile's guard travels in its context: the library's
// client is one for all services.
type guardKey struct{}

func withGuard(ctx context.Context, guard kube.Guard) context.Context {
	return context.WithValue(ctx, guardKey{}, guard)
}

// askGuard asks the guard of the reconcile that a write belongs to.
func askGuard(ctx context.Context) error {
	guard, ok := ctx.Value(guardKey{}).(kube.Guard)
	if !ok {
		return kube.ErrRefused
	}
	return guard(ctx)
}

// outdated is since when the slices of a service have been out of date.
type outdated struct {
	// trigger is the time they have not been told yet; zero: none.
	trigger time.Time
	// synced: this holder has brought them up to date once. Before that, they
	// themselves say how far a predecessor came.
	synced bool
	// versions are those of its slices that this holder has written, or has
	// decided on when they and its inputs agreed.
	versions map[string]string
}

// strange reports whether a slice is in a version that this holder neither wrote
// nor agreed with: another one is at work, who may have seen further. Before the
// first sync it is the frame that asks for a live read.
func (o outdated) strange(s snapshot) bool {
	return o.synced && slices.ContainsFunc(s.Slices, func(slice *discoveryv1.EndpointSlice) bool {
		return o.versions[slice.Name] != slice.ResourceVersion
	})
}

// after is what is known once a sync has ended. told: all its writes were taken,
// even if it failed because of a pod on a node that nobody knows.
func (o outdated) after(s snapshot, writes []kube.Write, err error, told bool) outdated {
	versions := make(map[string]string, len(s.Slices)+len(writes))
	if err == nil || s.Live {
		for _, slice := range s.Slices {
			versions[slice.Name] = slice.ResourceVersion
		}
	} else {
		maps.Copy(versions, o.versions)
	}
	for _, w := range writes {
		versions[w.Ref.Key.Name] = strconv.FormatUint(w.Ref.Version, 10)
		if w.Verb == kube.VerbDelete {
			delete(versions, w.Ref.Key.Name)
		}
	}
	o.versions = versions
	if told {
		o.synced, o.trigger = true, time.Time{}
	}
	return o
}

// knownServices are the services a holder has decided about.
type knownServices struct {
	mu   sync.Mutex
	keys map[event.Key]outdated
}

func (k *knownServices) get(key event.Key) outdated {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[key]
}

func (k *knownServices) put(key event.Key, since outdated) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys == nil {
		k.keys = make(map[event.Key]outdated)
	}
	k.keys[key] = since
}

func (k *knownServices) remove(key event.Key) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, key)
}

func (k *knownServices) all() []event.Key {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Collect(maps.Keys(k.keys))
}

// ownWrites are the versions that our writes returned, until they come back: an
// event that shows our own write and nothing else wakes nobody. An input that
// changed meanwhile woke the service itself.
type ownWrites struct {
	mu       sync.Mutex
	versions map[event.Key]uint64
}

// note remembers a write. Not a deletion: it wakes its service once more, which
// then finds nothing to do.
func (o *ownWrites) note(w kube.Write) {
	if w.Verb == kube.VerbDelete {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.versions == nil {
		o.versions = make(map[event.Key]uint64)
	}
	o.versions[w.Ref.Key] = max(o.versions[w.Ref.Key], w.Ref.Version)
}

// take reports whether a slice's version is the last one we wrote, and forgets
// it once that or something later has come.
func (o *ownWrites) take(key event.Key, version uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	last, ok := o.versions[key]
	if ok && version >= last {
		delete(o.versions, key)
	}
	return ok && version == last
}
