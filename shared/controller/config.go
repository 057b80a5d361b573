package controller

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/shared/tokenbucket"
)

// Config is what an operator may set of the frame.
type Config struct {
	// Workers is how many keys are reconciled at once.
	// Unit: keys, per replica; 0: as many as the role has by itself, which is 5 unless
	// it says otherwise. Default: kube-controller-manager v1.37,
	// --concurrent-endpoint-syncs and its siblings.
	Workers int `split_words:"true" default:"0"`

	// Mode is active; or shadow: everything runs, nothing is written; or off: no
	// partition is held. It holds while `millrace mode` has set none.
	Mode string `default:"active"`

	// HarmlessAge is how old an input may be for a write that harms nobody. A
	// role may allow less: endpoints 3 s.
	// Unit: Go duration. Default: architecture section 6.6.
	HarmlessAge time.Duration `split_words:"true" default:"30s"`

	// DestructiveAge is the same for a write that ends something.
	// Unit and source as above.
	DestructiveAge time.Duration `split_words:"true" default:"5s"`

	// WriteQPS is how many writes per second all replicas of the role make
	// together, beside what each may ask of the API server (MILLRACE_KUBE_QPS).
	// Unit: writes/s; 0: no limit. Default: none; upstream has none.
	WriteQPS float64 `split_words:"true" default:"0"`

	// WriteBurst is how many of them they may make at once.
	// Unit: writes; 0: a second's worth, at least 1. Default: ours.
	WriteBurst int `split_words:"true" default:"0"`

	// WriteWait is how long a key waits to see its own writes come back before
	// it reads live instead.
	// Unit: Go duration. Default: ours; bookmarks, which tell of writes that
	// no event follows, come once a second.
	WriteWait time.Duration `split_words:"true" default:"5s"`

	// MoveEvery is how often the durable position is moved, give or take a
	// quarter.
	// Unit: Go duration. Default: architecture section 3.
	MoveEvery time.Duration `split_words:"true" default:"16s"`

	// SweepEvery is how often a partition is read anew although nothing asks for
	// it, give or take a quarter.
	// Unit: Go duration. Default: architecture section 5.
	SweepEvery time.Duration `split_words:"true" default:"24h"`
}

// What a write limit may be. Source: ours; a write an hour is as good as none,
// and no API server takes a million a second.
const (
	minWriteQPS   = 0.0003
	maxWriteQPS   = 1e6
	maxWriteBurst = 1_000_000
)

// WriteLimit returns the rate, in writes/s, and the burst, in writes, of all
// replicas together; limited is false if there is none.
func (c Config) WriteLimit() (rate float64, burst int, limited bool) {
	return c.WriteQPS, tokenbucket.BurstOf(c.WriteQPS, c.WriteBurst), c.WriteQPS > 0
}

// The values of Config.Mode.
const (
	ModeActive = "active"
	ModeShadow = "shadow"
	ModeOff    = "off"
)

// Default returns the defaults as the tags state them.
func Default() Config {
	return Config{
		Workers: 0, Mode: ModeActive, HarmlessAge: 30 * time.Second, DestructiveAge: 5 * time.Second,
		WriteWait: 5 * time.Second, MoveEvery: 16 * time.Second, SweepEvery: 24 * time.Hour,
	}
}

// Validate says what is wrong, in the operator's words.
func (c Config) Validate() error {
	switch {
	case c.Workers < 0:
		return fmt.Errorf("MILLRACE_CONTROLLER_WORKERS is %d; it must be 0 or more", c.Workers)
	case !ValidMode(c.Mode):
		return fmt.Errorf("MILLRACE_CONTROLLER_MODE is %q; it must be active, shadow or off", c.Mode)
	case c.DestructiveAge > c.HarmlessAge:
		return fmt.Errorf("MILLRACE_CONTROLLER_DESTRUCTIVE_AGE is %s; it must not exceed the harmless age, %s", c.DestructiveAge, c.HarmlessAge)
	case c.WriteQPS != 0 && !(c.WriteQPS >= minWriteQPS && c.WriteQPS <= maxWriteQPS):
		return fmt.Errorf("MILLRACE_CONTROLLER_WRITE_QPS is %g; it must be 0, for none, or %g to %g writes per second", c.WriteQPS, minWriteQPS, maxWriteQPS)
	case c.WriteBurst < 0 || c.WriteBurst > maxWriteBurst:
		return fmt.Errorf("MILLRACE_CONTROLLER_WRITE_BURST is %d; it must be 0, for a second's worth, or 1 to %d writes", c.WriteBurst, maxWriteBurst)
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"HARMLESS_AGE", c.HarmlessAge}, {"DESTRUCTIVE_AGE", c.DestructiveAge}, {"WRITE_WAIT", c.WriteWait},
		{"MOVE_EVERY", c.MoveEvery}, {"SWEEP_EVERY", c.SweepEvery},
	} {
		if d.value <= 0 {
			return fmt.Errorf("MILLRACE_CONTROLLER_%s is %s; it must be positive", d.name, d.value)
		}
	}
	return nil
}
