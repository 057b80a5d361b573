package role

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/protocol"
)

// told notes what a Track tells it, and holds the writes of one part back.
type told struct {
	shadow  string
	asked   []string
	wrote   []protocol.Write
	records []controller.Decision
}

func (p *told) Guard(ctx context.Context, key event.Key, d controller.Danger) error {
	return p.GuardPart(ctx, key, "", d)
}

func (p *told) GuardPart(_ context.Context, _ event.Key, part string, _ controller.Danger) error {
	p.asked = append(p.asked, part)
	if part != "" && part == p.shadow {
		return controller.ErrShadow
	}
	return nil
}

func (p *told) Wrote(_ event.Key, w protocol.Write) { p.wrote = append(p.wrote, w) }

func (p *told) Record(_ event.Key, d controller.Decision) { p.records = append(p.records, d) }

// A write of a part is held back and recorded as intended while the part is in
// shadow, whatever the role is in; one of another part leaves.
func TestWritesOfAPartFollowItsMode(t *testing.T) {
	p := &told{shadow: "taints"}
	w := kube.Write{Verb: kube.VerbDelete, Ref: kube.Ref{Kind: "pods", Key: event.Key{Namespace: "a", Name: "b"}, Version: 7}}
	for _, part := range []string{"taints", "garbage"} {
		track := &Track{Partition: OfPart(p, part), Key: w.Ref.Key, Rule: part, Detail: func() string { return "of " + part }}
		write := w
		if err := track.Guard(t.Context()); err != nil { // as a Writer does
			if !errors.Is(err, kube.ErrShadow) {
				t.Fatal(err)
			}
			write.Shadow = true
		}
		track.Wrote(write)
		if err := track.Err(nil); errors.Is(err, controller.ErrShadow) != (part == p.shadow) {
			t.Errorf("the reconcile of %s ends with %v", part, err)
		}
	}
	if len(p.wrote) != 1 || len(p.records) != 2 || !p.records[0].Shadow || p.records[1].Shadow {
		t.Errorf("written %+v, recorded %+v", p.wrote, p.records)
	}
	for i, part := range []string{"taints", "garbage"} {
		if p.asked[i] != part || p.records[i].Detail != "of "+part {
			t.Errorf("asked for %q, recorded %q", p.asked[i], p.records[i].Detail)
		}
	}
}
