package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// feed keeps one cache filled. It implements event.Sink.
type feed struct {
	c     *Controller
	log   *slog.Logger
	spec  event.Feed
	cache *cache.Cache
	again chan struct{}
	saw   func(seq uint64) // a message has been delivered and mapped; may be nil
	moved func()           // the cache has become complete, or is no longer; may be nil

	mu     sync.Mutex
	reason string // of the next replay
}

func (c *Controller) newFeed(log *slog.Logger, spec event.Feed) *feed {
	return &feed{c: c, log: log, spec: spec, again: make(chan struct{}, 1), reason: replayFirst}
}

// feedOf says what a partition's feed reads. Its name is never used twice: the
// edge adds a counter of replays.
func (c *Controller) feedOf(g Grant) event.Feed {
	filter := event.KeyFilter
	if c.def.By == protocol.ByNamespace {
		filter = event.NamespaceFilter
	}
	f := event.Feed{Name: fmt.Sprintf("%s-p%d-%s-%d", c.def.Role, g.Index(), g.Member(), g.Epoch())}
	for _, in := range c.def.Inputs {
		f.Filters = append(f.Filters, filter(event.Root(c.bus.Cluster()), in.Kind, g.Index()))
	}
	return f
}

// fill makes the feed's cache.
func (f *feed) fill(scope protocol.Scope, inputs []cache.Input, changed func(cache.Change), marked func(event.Kind)) *cache.Cache {
	f.cache = cache.New(scope, inputs, f.log, changed, cache.Hooks{
		Again: func(event.Kind, int) {
			f.c.metrics.drifts.Inc()
			f.readAgain(replayDrift)
		},
		Compare: func(kind event.Kind, slice int) {
			f.c.metrics.drifts.Inc()
			f.c.asker.compare(kind, slice)
		},
		Poison: f.poison,
		Moved:  f.tell,
		Marked: marked,
	})
	return f.cache
}

func (f *feed) tell() {
	if f.moved != nil {
		f.moved()
	}
}

// readAgain asks for a new replay; asking twice is asking once.
func (f *feed) readAgain(reason string) {
	f.mu.Lock()
	f.reason = reason
	f.mu.Unlock()
	select {
	case f.again <- struct{}{}:
	default:
	}
}

// poison dead-letters an object that cannot be read, and takes that back.
func (f *feed) poison(x cache.Poison) {
	if x.Reason == "" {
		f.c.letters.clear(x.Kind, x.Key)
		return
	}
	f.c.metrics.poison.Inc()
	f.c.letters.write(x.Kind, x.Key, x.Reason, "")
}

// follow reads until ctx ends.
func (f *feed) follow(ctx context.Context) {
	for ctx.Err() == nil {
		err := f.c.bus.Follow(ctx, f.spec, f, f.again)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it ended unasked")
		}
		f.log.Warn("feed ended, following again", "feed", f.spec.Name, "err", err)
		f.cache.Gap("feed ended")
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// Begin implements event.Sink.
func (f *feed) Begin(replay uint64) {
	f.mu.Lock()
	reason := f.reason
	f.reason = replayGap
	f.mu.Unlock()
	f.c.metrics.replays.WithLabelValues(reason).Inc()
	f.cache.Begin(replay)
}

// Deliver implements event.Sink.
func (f *feed) Deliver(m event.Message) {
	f.cache.Deliver(m)
	if f.saw != nil {
		f.saw(m.Seq)
	}
}

// Broken implements event.Sink.
func (f *feed) Broken(subject string, seq uint64, err error) {
	f.cache.Broken(subject, seq, err)
	if f.saw != nil {
		f.saw(seq)
	}
}

// Gap implements event.Sink.
func (f *feed) Gap(reason string) {
	f.cache.Gap(reason)
}
