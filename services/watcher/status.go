package watcher

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// staleMark is the age of a bookmark above which a kind is not ready. Unit:
// time. Source: architecture section 6.6; destructive acts stop then.
const staleMark = 5 * time.Second

// kindStatus is what others may know of a kind. Its owner writes it.
type kindStatus struct {
	kind event.Kind

	mu    sync.Mutex
	held  bool
	epoch uint64
	// waits is what the kind waits for; empty once bookmarks are made.
	waits string
	// problem is the last thing that went wrong; empty while all is well.
	problem string
	absent  bool
	objects uint64
	dirty   uint64
	upto    uint64
	marked  time.Time // of the slice that has waited longest
}

func (s *kindStatus) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *kindStatus) take(epoch uint64) {
	s.note(func() { s.held, s.epoch, s.waits = true, epoch, "starting" })
}

func (s *kindStatus) giveUp() {
	s.note(func() {
		s.held, s.absent, s.problem, s.waits = false, false, "", ""
		s.objects, s.dirty, s.upto, s.marked = 0, 0, 0, time.Time{}
	})
}

// say tells what the kind waits for.
func (s *kindStatus) say(what string) { s.note(func() { s.waits = what }) }

// stumbled tells what went wrong; it is forgotten when bookmarks flow.
func (s *kindStatus) stumbled(err error) { s.note(func() { s.problem = err.Error() }) }

// ready returns why a kind that is held here is not fresh in the stream.
func (s *kindStatus) ready(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := s.waits
	switch {
	case !s.held:
		return nil // another member's, or nobody's: the lease says so
	case why != "":
	case s.marked.IsZero():
		why = "no bookmark yet"
	case now.Sub(s.marked) > staleMark:
		why = fmt.Sprintf("no bookmark for %s", now.Sub(s.marked).Truncate(time.Second))
	default:
		return nil
	}
	if s.problem != "" && s.problem != why {
		why += ": " + s.problem
	}
	return errors.New(why)
}

func (s *kindStatus) proto(now time.Time) (*millracev1.PartitionStatus, *millracev1.KindStatus) {
	problem := ""
	if err := s.ready(now); err != nil {
		problem = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		return nil, nil
	}
	kind := &millracev1.KindStatus{
		Kind: string(s.kind), Synced: s.waits == "" && !s.marked.IsZero(), Absent: s.absent,
		Upto: s.upto, Objects: s.objects, Problem: problem,
	}
	if !s.marked.IsZero() {
		kind.Age = durationpb.New(now.Sub(s.marked))
	}
	return &millracev1.PartitionStatus{
		Unit: string(s.kind), Epoch: s.epoch, Synced: kind.Synced, Objects: s.objects, Queued: s.dirty,
	}, kind
}

// report shows how the kind does; it is called once a second.
func (o *owner) report(now time.Time) {
	objects, dirty, marked := o.pub.Objects(), o.pub.Dirty(), o.marks.oldest()
	waits := o.waitsFor(now)
	o.status.note(func() {
		s := o.status
		s.waits, s.absent, s.marked = waits, o.absent, marked
		s.objects, s.dirty, s.upto = uint64(objects), uint64(dirty), o.pub.Upto() //nolint:gosec // counts
		if waits == "" && now.Sub(marked) < 2*markPeriod {
			s.problem = ""
		}
	})
	m := o.metrics
	m.objects.Set(float64(objects))
	m.dirty.Set(float64(dirty))
	m.outstanding.Set(float64(o.flying))
	m.bookmarkAge.Set(age(marked).Seconds())
	m.alive.Set(0)
	if o.listed && waits == "" {
		m.alive.Set(1)
	}
}

// waitsFor is why no bookmark can be made now; empty if one can.
func (o *owner) waitsFor(now time.Time) string {
	if o.absent && o.watch.Absent() {
		return ""
	}
	if alive, why := o.watch.Alive(now); !alive {
		return why
	}
	if !o.pub.Started() {
		return "the difference to the first list is being published"
	}
	return ""
}
