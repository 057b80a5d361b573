package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// partKey is where the mode of the rig's part stands.
var partKey = ModeKey(PartName("mirror", "outs"))

// withPart makes mirroring a part of the role: a key of a part that is off is left
// alone, and its writes are guarded as those of the part.
func withPart(r *rig) {
	r.def.Parts = map[string]string{"outs": ModeActive, "other": ModeShadow}
	mirror := r.reconcile
	r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
		switch p.Mode("outs") {
		case ModeActive, ModeShadow:
			return mirror(ctx, p, k)
		default:
			return Result{}, nil
		}
	}
	r.part = "outs"
}

func (r *rig) setPart(mode string) {
	r.SetFact(partKey, mode)
	settle(time.Second)
}

// shadowed returns how many keys would have been written.
func (r *rig) shadowed() (n int) {
	for _, p := range r.c.partitions() {
		p.shadow.mu.Lock()
		n += len(p.shadow.intents)
		p.shadow.mu.Unlock()
	}
	return n
}

func (r *rig) wantPart(part, own, holds string) {
	r.Helper()
	for _, got := range r.c.Status().GetParts() {
		if got.GetPart() == part && (got.GetOwn() != own || got.GetHolds() != holds) {
			r.Errorf("part %s is %s of its own and %s holds, want %s and %s", part, got.GetOwn(), got.GetHolds(), own, holds)
		}
	}
}

// What holds for a part is the more cautious of its mode and of the role's; what is
// not known allows nothing.
func TestTheMoreCautiousModeHolds(t *testing.T) {
	play(t, 1, withPart, func(r *rig) {
		p := &Partition{c: r.c}
		if got := p.Mode("outs"); got != "" {
			r.Errorf("before anything is known %q holds", got)
		}
		settle(time.Second)
		for _, tt := range []struct{ role, part, want string }{
			{ModeActive, ModeActive, ModeActive}, {ModeActive, ModeShadow, ModeShadow}, {ModeActive, ModeOff, ModeOff},
			{ModeShadow, ModeActive, ModeShadow}, {ModeShadow, ModeShadow, ModeShadow}, {ModeShadow, ModeOff, ModeOff},
			{ModeOff, ModeActive, ModeOff}, {ModeOff, ModeShadow, ModeOff}, {ModeOff, ModeOff, ModeOff},
		} {
			r.SetFact(ModeKey("mirror"), tt.role)
			r.setPart(tt.part)
			r.wantPart("outs", tt.part, tt.want)
			if got := p.Mode("outs"); got != tt.want || p.Mode("") != tt.role || p.Mode("none") != ModeOff {
				r.Errorf("role %s, part %s: %q holds, want %s", tt.role, tt.part, got, tt.want)
			}
		}
		if got := r.value("millrace_controller_part_mode", "part=outs", "mode=off"); got != 1 {
			r.Errorf("the metric says %v", got)
		}
	})
}

// While the mode of a part is not known, nothing of it is written, and the member
// is not ready; once it is, everything is done.
func TestNothingOfAPartBeforeItsModeIsKnown(t *testing.T) {
	play(t, 1, func(r *rig) {
		withPart(r)
		r.HideFact(partKey)
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(time.Minute)
		if err := r.c.Ready(); err == nil || r.written() != 0 {
			r.Errorf("ready: %v, after %d writes", err, r.written())
		}
		r.HideFact("")
		settle(2 * time.Second)
		r.wantPart("outs", ModeActive, ModeActive)
		r.wantMirrored()
		if err := r.c.Ready(); err != nil {
			r.Error(err)
		}
	})
}

// ⚠ What a part left alone while it was off is done once it may write, although no
// event asks for it; and in shadow it is told what it would be.
func TestEveryKeyIsLookedAtWhenAPartChanges(t *testing.T) {
	play(t, 1, withPart, func(r *rig) {
		r.setPart(ModeOff)
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "x")
		settle(time.Minute)
		if n := r.written(); n != 0 || r.shadowed() != 0 {
			r.Fatalf("%d writes and %d intentions of a part that is off", n, r.shadowed())
		}
		r.setPart(ModeShadow)
		if n := r.written(); n != 0 || r.shadowed() != 1 {
			r.Fatalf("%d writes and %d intentions of a part in shadow", n, r.shadowed())
		}
		r.setPart(ModeActive)
		r.wantMirrored()
		if r.shadowed() != 0 {
			r.Error("what was done is still intended")
		}
	})
}

// ⚠ The race by itself: a key is answered by the old mode, and the part has another
// before its run has ended.
func TestAKeyInHandWhenAPartBecomesActive(t *testing.T) {
	play(t, 1, func(r *rig) {
		withPart(r)
		r.SetFact(partKey, ModeShadow)
		mirror := r.reconcile
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			result, err := mirror(ctx, p, k)
			if errors.Is(err, ErrShadow) {
				time.Sleep(10 * time.Second)
			}
			return result, err
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "x")
		settle(time.Second) // in hand, and held back
		r.setPart(ModeActive)
		settle(15 * time.Second)
		r.wantMirrored()
	})
}

// ⚠ A write that was decided on while the part was active is refused from the moment
// on at which it is not, and tried again by what holds then.
func TestAPartIsHeldBackAtOnce(t *testing.T) {
	for _, to := range []string{ModeOff, ModeShadow} {
		play(t, 1, func(r *rig) {
			withPart(r)
			r.Put(things, key("a"), "x")
			mirror := r.reconcile
			r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
				if p.Mode("outs") == ModeActive {
					r.SetFact(partKey, to)
					time.Sleep(time.Second)
				}
				return mirror(ctx, p, k)
			}
		}, func(r *rig) {
			r.lease.Claim(0)
			settle(time.Minute)
			if n := r.written(); n != 0 {
				r.Errorf("%d writes after it was %s", n, to)
			}
		})
	}
}

// The mode of a part that was set outlives the bucket, as that of a role does.
func TestAPartThatWasHeldBackDoesNotBeginByItself(t *testing.T) {
	play(t, 1, func(r *rig) { withPart(r); r.SetFact(partKey, ModeOff) }, func(r *rig) {
		settle(time.Second)
		r.LoseFacts()
		settle(time.Minute)
		r.wantPart("outs", ModeOff, ModeOff)
		r.wantPart("other", ModeShadow, ModeShadow)
		r.setPart(ModeActive)
		r.wantPart("outs", ModeActive, ModeActive)
		r.setPart("") // taken back: the setting counts again
		r.wantPart("outs", ModeActive, ModeActive)
	})
}

func TestAPartsSettingIsChecked(t *testing.T) {
	d := newRig(t, 1).def
	for part, mode := range map[string]string{"outs": "on", "": ModeActive} {
		d.Parts = map[string]string{part: mode}
		if err := d.validate(); err == nil {
			t.Errorf("part %q in mode %q was taken", part, mode)
		}
	}
}
