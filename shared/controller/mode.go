package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// ModeKey is where the bucket of facts holds the mode of a role, as one of the
// values of Config.Mode. Nothing there: each member's Config says. Of a part of a
// role it is the key of PartName.
func ModeKey(role string) string { return "mode." + event.Token(role) }

// PartName is what a part of a role is called outside of it. No role's name has a
// slash, so no part's mode is ever taken for that of a role.
func PartName(role, part string) string { return role + "/" + part }

// ValidMode reports whether a role can be put in that mode.
func ValidMode(mode string) bool { return mode == ModeOff || mode == ModeShadow || mode == ModeActive }

// modes knows in which mode the role is, or a part of it. Until the bucket has been
// read once that is not known, and no partition is claimed; from then on the last
// known mode holds, whatever becomes of the bucket. It implements event.EntrySink.
type modes struct {
	key      string // see ModeKey
	fallback string // while nothing is set
	log      *slog.Logger
	// turned is told of a change, after it has come into force; set before use.
	turned func(from, to string)

	mu      sync.Mutex
	now     string // empty: not known
	told    bool   // this replay has told what is set
	changed chan struct{}
}

func newModes(key, fallback string, log *slog.Logger) *modes {
	return &modes{key: key, fallback: fallback, log: log, changed: make(chan struct{}), turned: func(string, string) {}}
}

// get returns the mode, empty while it is not known, and what is closed when it
// changes.
func (m *modes) get() (mode string, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now, m.changed
}

func (m *modes) mode() string {
	mode, _ := m.get()
	return mode
}

func (m *modes) set(mode string) {
	m.mu.Lock()
	from := m.now
	if from == mode {
		m.mu.Unlock()
		return
	}
	m.now = mode
	close(m.changed)
	m.changed = make(chan struct{})
	m.mu.Unlock()
	m.log.Info("mode", "mode", mode, "before", from)
	m.turned(from, mode)
}

// Begin implements event.EntrySink, as all that follow.
func (m *modes) Begin(uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = false
}

// Entry takes what is set.
func (m *modes) Entry(_ string, value []byte, _ uint64, deleted bool) {
	m.mu.Lock()
	m.told = true
	m.mu.Unlock()
	mode := string(value)
	switch {
	case deleted:
		m.set(m.fallback)
	case !ValidMode(mode):
		m.log.Error("the mode that is set is none; the one before stays", "mode", mode)
	default:
		m.set(mode)
	}
}

// Caught: everything has been told. What was set once and is gone without a word
// went with the bucket ⚠: a role that was held back must not begin to write
// because NATS lost its store.
func (m *modes) Caught() {
	m.mu.Lock()
	told, now := m.told, m.now
	m.mu.Unlock()
	switch {
	case told:
	case now == "":
		m.set(m.fallback)
	case now != m.fallback:
		m.log.Warn("the mode that was set is not on the bus any more; it stays until one is set", "mode", now)
	}
}

// Gap implements event.EntrySink.
func (m *modes) Gap(string) {}

// follow keeps the mode until ctx ends.
func (m *modes) follow(ctx context.Context, bus Bus) {
	for ctx.Err() == nil {
		err := bus.FollowFacts(ctx, m.key, m)
		if ctx.Err() != nil {
			return
		}
		m.log.Warn("following the mode ended, following again", "err", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// ModesChanged returns what is closed at the next change of a mode of the role or of
// one of its parts. Take it before looking at what holds.
func (c *Controller) ModesChanged() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.moved
}

// announce tells who waits in ModesChanged.
func (c *Controller) announce() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.moved)
	c.moved = make(chan struct{})
}

// turned makes every key be looked at once the role may write ⚠: what was held
// back in shadow mode counts as done, and no event will ask for it again. The
// mode is in force by now, so a key that was in hand and held back is either
// woken by this or was answered by the new mode.
func (c *Controller) turned(_, to string) {
	for _, p := range c.partitions() {
		if to == ModeActive {
			p.anew.Store(true)
			p.look()
		}
		p.shadow.reset()
	}
	c.announce()
}

// share takes part in sharing the partitions while the mode is known and not
// off, until ctx ends or l fails.
func share[G Grant](ctx context.Context, c *Controller, l Lease[G]) error {
	for ctx.Err() == nil {
		mode, changed := c.modes.get()
		part, end := context.WithCancel(ctx)
		if mode == "" || mode == ModeOff {
			await(part, end, changed)
			l.Idle(part)
			end()
			continue
		}
		go c.untilOff(part, end)
		err := l.Run(part, func(ctx context.Context, g G) error { return c.hold(ctx, g) })
		over := part.Err() == nil
		end()
		if err != nil || over {
			return err
		}
	}
	return nil
}

// await ends a part when changed is closed.
func await(part context.Context, end context.CancelFunc, changed <-chan struct{}) {
	go func() {
		select {
		case <-changed:
		case <-part.Done():
		}
		end()
	}()
}

// untilOff ends a part when the role is switched off.
func (c *Controller) untilOff(part context.Context, end context.CancelFunc) {
	for {
		mode, changed := c.modes.get()
		if mode == ModeOff {
			end()
			return
		}
		select {
		case <-changed:
		case <-part.Done():
			return
		}
	}
}

// errOff is why a role, or a part, that was switched off a moment ago may not write.
var errOff = fmt.Errorf("%w: it is switched off", ErrNotHolder)
