package role

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Partition is what a Track tells; *controller.Partition is one.
type Partition interface {
	Guard(ctx context.Context, key event.Key, d controller.Danger) error
	Wrote(key event.Key, w protocol.Write)
	Record(key event.Key, d controller.Decision)
}

// Parted is a Partition of a role with parts; *controller.Partition is one.
type Parted interface {
	Partition
	GuardPart(ctx context.Context, key event.Key, part string, d controller.Danger) error
}

// OfPart is p for the writes of a part of the role: for them the part's mode holds
// too, to the last moment before they leave. In shadow they are recorded as
// intended.
func OfPart(p Parted, part string) Partition { return parted{p, part} }

type parted struct {
	Parted
	part string
}

func (p parted) Guard(ctx context.Context, key event.Key, d controller.Danger) error {
	return p.GuardPart(ctx, key, p.part, d)
}

// Track ties the writes of one reconcile to the frame: whom they ask, what is
// waited for afterwards, and what is recorded of them. It is made anew for every
// reconcile:
//
//	track := &role.Track{Partition: p, Key: key, Rule: "taint"}
//	writer := api.Writer(track.Options(edges.WriteOptions(cfg.Controller)))
type Track struct {
	Partition Partition
	Key       event.Key
	// Rule is which rule of the role asks for the writes.
	Rule string
	// Danger is what they may do; zero: harmless.
	Danger controller.Danger
	// Detail says why in one line, for people; nil: nothing is said. Called once per
	// write.
	Detail func() string
	// Inputs returns what the decision rests on, what matters most first; nil:
	// nothing is told. Called once per write.
	Inputs func() []controller.Ref
	// Valid is asked after the frame, right before a write leaves: what it rests on
	// besides, like a token; nil: nothing.
	Valid func() error

	shadowed atomic.Bool
}

// Options returns what a kube.Writer takes; of is what all writes of the role
// share: see Edges.WriteOptions.
func (t *Track) Options(of kube.WriteOptions) kube.WriteOptions {
	of.Guard, of.OnWrite, of.OnFail = t.Guard, t.Wrote, t.Failed
	return of
}

// Guard asks the frame; in shadow mode it says so in the edge's words.
func (t *Track) Guard(ctx context.Context) error {
	err := t.Partition.Guard(ctx, t.Key, max(t.Danger, controller.Harmless))
	switch {
	case errors.Is(err, controller.ErrShadow):
		return fmt.Errorf("%w: %w", kube.ErrShadow, err)
	case err == nil && t.Valid != nil:
		return t.Valid()
	}
	return err
}

// Wrote takes a write that the API server took, or that was held back.
func (t *Track) Wrote(w kube.Write) {
	if w.Shadow {
		t.shadowed.Store(true)
	} else {
		t.Partition.Wrote(t.Key, protocol.Write{
			Kind: w.Ref.Kind, Key: w.Ref.Key, UID: w.Ref.UID, Version: w.Ref.Version, Deleted: w.Verb == kube.VerbDelete && !w.Later,
		})
	}
	t.record(w, nil)
}

// Failed takes a write that the API server did not take.
func (t *Track) Failed(w kube.Write, err error) { t.record(w, err) }

// Err is what the reconcile returns that ended with err: nothing has been
// achieved by a write that was held back.
func (t *Track) Err(err error) error {
	if err == nil && t.shadowed.Load() {
		return controller.ErrShadow
	}
	return err
}

func (t *Track) record(w kube.Write, err error) {
	d := controller.Decision{
		Object: controller.Ref(w.Ref), Verb: string(w.Verb), Base: w.Base, Rule: t.Rule,
		Body: w.Body, Shadow: w.Shadow, Err: err,
	}
	if w.Shadow || err != nil {
		d.Object.Version = 0 // there is none after a write that was not made
	}
	if err != nil {
		d.Class = kube.Class(err)
	}
	if t.Detail != nil {
		d.Detail = t.Detail()
	}
	if t.Inputs != nil {
		d.Inputs = t.Inputs()
	}
	t.Partition.Record(t.Key, d)
}
