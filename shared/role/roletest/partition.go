package roletest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Partition stands for a controller.Partition whose inputs are complete and fresh,
// that is ours, and whose role and parts are active, unless a test says otherwise.
type Partition struct {
	// Time is the cluster's time.
	Time func() time.Time
	// OnChange and OnWake are called with each change and each key woken, as well as
	// that they are noted; nil: nobody is. Set before use.
	OnChange func(c cache.Change)
	OnWake   func(key event.Key)

	number    int
	own, wide *cache.Cache

	mu      sync.Mutex
	changes []cache.Change
	refuse  func(d controller.Danger) error
	live    map[event.Key]bool
	modes   map[string]string // of the parts; "" is the role
	woken   []event.Key
	told    []controller.Decision
	wrote   []protocol.Write
}

func (p *Partition) note(c cache.Change) {
	p.mu.Lock()
	p.changes = append(p.changes, c)
	p.mu.Unlock()
	if p.OnChange != nil {
		p.OnChange(c)
	}
}

// Changes returns the changes of its inputs since the last call.
func (p *Partition) Changes() []cache.Change {
	p.mu.Lock()
	defer p.mu.Unlock()
	changes := p.changes
	p.changes = nil
	return changes
}

// View implements the partition, as do the methods that follow.
func (p *Partition) View(fn func(r controller.Reader)) { cache.View(fn, p.own, p.wide) }

// Number is which one it is.
func (p *Partition) Number() int { return p.number }

// Now is Time.
func (p *Partition) Now() (time.Time, error) { return p.Time(), nil }

// Guard is GuardPart of the role.
func (p *Partition) Guard(ctx context.Context, key event.Key, d controller.Danger) error {
	return p.GuardPart(ctx, key, "", d)
}

// GuardPart asks in the order of the frame.
func (p *Partition) GuardPart(ctx context.Context, key event.Key, part string, d controller.Danger) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if p.refuse != nil {
		if err := p.refuse(d); err != nil {
			return fmt.Errorf("guarding a %s write of %s: %w", d, key, err)
		}
	}
	switch mode := p.mode(part); {
	case mode == controller.ModeOff:
		return fmt.Errorf("%w: it is switched off", controller.ErrNotHolder)
	case p.live[key]:
		return controller.ErrLiveFirst
	case mode == controller.ModeShadow:
		return controller.ErrShadow
	}
	return nil
}

// Refuses makes Guard refuse what refuse does; nil ends that.
func (p *Partition) Refuses(refuse func(d controller.Danger) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

// Mode is what holds for a part: the more cautious of the role's mode and its own.
func (p *Partition) Mode(part string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode(part)
}

// mode is Mode; p.mu is held.
func (p *Partition) mode(part string) string {
	for _, mode := range []string{controller.ModeOff, controller.ModeShadow} {
		if p.modes[part] == mode || p.modes[""] == mode {
			return mode
		}
	}
	return controller.ModeActive
}

// Switch sets the mode of a part, of the role where that is "".
func (p *Partition) Switch(part, mode string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modes[part] = mode
}

// Shadow reports whether the role only watches.
func (p *Partition) Shadow() bool { return p.Mode("") == controller.ModeShadow }

// LiveFirst reports whether a key's next write must be decided on a live read.
func (p *Partition) LiveFirst(key event.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live[key]
}

// MustReadLive makes LiveFirst true.
func (p *Partition) MustReadLive(key event.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[key] = true
}

// ReadLive makes it false again.
func (p *Partition) ReadLive(key event.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, key)
}

// Wrote notes a write.
func (p *Partition) Wrote(_ event.Key, w protocol.Write) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wrote = append(p.wrote, w)
}

// Written returns what Wrote was told since the last call.
func (p *Partition) Written() []protocol.Write {
	p.mu.Lock()
	defer p.mu.Unlock()
	wrote := p.wrote
	p.wrote = nil
	return wrote
}

// Record notes a decision.
func (p *Partition) Record(_ event.Key, d controller.Decision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, d)
}

// Decisions returns what was recorded since the last call.
func (p *Partition) Decisions() []controller.Decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := p.told
	p.told = nil
	return told
}

// Rules returns the rules of the writes recorded since the last call, those refused
// by the server with their class.
func (p *Partition) Rules() string {
	var out []string
	for _, d := range p.Decisions() {
		text := d.Rule
		if d.Shadow {
			text += "(intended)"
		}
		if d.Err != nil {
			text += "(" + d.Class + ")"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// Wake notes a key that is woken.
func (p *Partition) Wake(key event.Key) {
	p.mu.Lock()
	p.woken = append(p.woken, key)
	p.mu.Unlock()
	if p.OnWake != nil {
		p.OnWake(key)
	}
}

// Wakes returns the keys woken since the last call, as ListKeys does.
func (p *Partition) Wakes() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	woken := p.woken
	p.woken = nil
	return ListKeys(woken)
}

// ListKeys writes keys in order: "node ns/pod".
func ListKeys(keys []event.Key) string {
	out := make([]string, 0, len(keys))
	for _, k := range keys {
		out = append(out, strings.TrimPrefix(k.Namespace+"/"+k.Name, "/"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
