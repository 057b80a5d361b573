package watcher

import (
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

const (
	// markPeriod is how often each slice is marked. Unit: time. Source:
	// architecture section 4.
	markPeriod = time.Second
	// tickFloor bounds how often the loop wakes up: with many partitions several
	// are marked at once. Unit: time.
	tickFloor = 20 * time.Millisecond
	// askedGap is the least time between bookmarks of a slice that were asked
	// for. Unit: time. Source: architecture section 4, at most 10 a second.
	askedGap = 100 * time.Millisecond
	// refusedPause is how long no bookmark is made after a stream was full.
	// Unit: time; longer than the longest wait between two tries.
	refusedPause = 3 * time.Second
)

// marks is when which slice is due for a bookmark, and when each last had one.
type marks struct {
	start   time.Time
	cursor  int // slices marked since start
	seconds time.Time
	asked   []time.Time
	wanted  []bool   // asked for again too soon after the last
	made    []uint64 // counter of the last that was sent
	acked   []time.Time
	refused time.Time
	// base is added to the publisher's counters: they must grow over the runs of
	// one epoch. highest is the greatest that was sent.
	base, highest uint64
}

func newMarks(partitions int) marks {
	return marks{
		asked: make([]time.Time, partitions), wanted: make([]bool, partitions),
		made: make([]uint64, partitions), acked: make([]time.Time, partitions),
	}
}

func (m *marks) begin(now time.Time) { m.start, m.seconds = now, now }

// interval spreads the slices evenly over the period.
func (m *marks) interval() time.Duration {
	return max(markPeriod/time.Duration(len(m.asked)), tickFloor)
}

// second reports whether another second has passed.
func (m *marks) second(now time.Time) bool {
	if now.Sub(m.seconds) < time.Second {
		return false
	}
	m.seconds = now
	return true
}

// due returns how many slices, from which on, are due at now. Periods in which
// the loop could not run are not made up for.
func (m *marks) due(now time.Time) (from, n int) {
	target := int(now.Sub(m.start) * time.Duration(len(m.asked)) / markPeriod)
	from = max(m.cursor, target-len(m.asked))
	m.cursor = max(m.cursor, target)
	return from, m.cursor - from
}

// oldest is when the slice that has waited longest was last marked.
func (m *marks) oldest() time.Time {
	oldest := m.acked[0]
	for _, t := range m.acked {
		if t.Before(oldest) {
			oldest = t
		}
	}
	return oldest
}

// mayMark: no bookmark before the first list, while the watch is not alive, and
// while the stream refuses.
func (o *owner) mayMark(now time.Time) bool {
	if !o.listed || !o.marks.refused.IsZero() && now.Sub(o.marks.refused) < refusedPause {
		return false
	}
	if o.absent {
		return o.watch.Absent()
	}
	alive, _ := o.watch.Alive(now)
	return alive
}

func (o *owner) markWhenDue(now time.Time) {
	from, n := o.marks.due(now)
	if n == 0 || !o.mayMark(now) {
		return
	}
	for i := range n {
		o.pub.Mark((from + i) % len(o.marks.asked))
	}
}

// markAsked makes a bookmark for someone who waits for it, or as soon as the
// last one is askedGap ago; slice -1 means all.
func (o *owner) markAsked(slice int) {
	for i := range o.marks.asked {
		if slice == i || slice < 0 {
			o.marks.wanted[i] = true
		}
	}
	o.markWanted(time.Now())
}

// markWanted makes the bookmarks that somebody waits for.
func (o *owner) markWanted(now time.Time) {
	for i, wanted := range o.marks.wanted {
		if !wanted || now.Sub(o.marks.asked[i]) < askedGap {
			continue
		}
		if !o.mayMark(now) {
			return
		}
		o.marks.asked[i], o.marks.wanted[i] = now, false
		o.pub.Mark(i)
	}
}

// made names the last bookmark of a slice that was sent: what is made from now
// on has a greater counter.
func (o *owner) made(slice int) []byte {
	if slice < 0 || slice >= len(o.marks.made) {
		return []byte{}
	}
	return fmt.Appendf(nil, "%d %d", o.grant.Epoch(), max(o.marks.base, o.marks.made[slice]))
}

func (o *owner) publishMark(e *protocol.Effect[*body]) {
	slice, mark := e.Slice, e.Mark
	if !o.mayMark(time.Now()) {
		o.pub.MarkRefused(slice) // it was due before, and is not true enough any more
		return
	}
	mark.Counter += o.marks.base
	o.marks.highest = max(o.marks.highest, mark.Counter)
	o.marks.made[slice] = mark.Counter
	o.flying++
	o.bus.Publish(bus.Publication{Expect: e.Expect, Message: event.Message{
		Kind: o.kind, Op: event.Bookmark, Slice: slice, Mark: &mark, Upto: e.Upto,
		Epoch: o.grant.Epoch(), Projection: projection, Observed: time.Now(),
	}}, func(seq uint64, err error) {
		o.results <- func() {
			o.flying--
			if err != nil {
				o.pub.MarkRefused(slice)
				return
			}
			o.metrics.bookmarks.Inc()
			o.marks.acked[slice] = time.Now()
			o.pub.MarkAcked(slice, seq)
		}
	})
}

// Subjects on which the owner of a kind is asked for something.
func askSubject(cluster string, kind event.Kind, what string) string {
	return "millrace." + event.Token(cluster) + ".watch." + event.Token(string(kind)) + "." + what
}

// answerWait bounds the wait for the loop to take a request. Unit: time.
const answerWait = 200 * time.Millisecond

// answer listens for requests: "mark", with a slice in decimal or nothing for
// all, and "compare". To the first it says which bookmark was the last: one that
// has a greater counter was made after the question ⚠, whatever was under way
// then. A loop that is too busy lets a request go: it is asked again.
func (o *owner) answer() (stop func()) {
	ask := func(what string, do func(data []byte) []byte) func() {
		stop, err := o.bus.Answer(askSubject(o.bus.Cluster(), o.kind, what), func(data []byte) []byte {
			said := make(chan []byte, 1)
			select {
			case o.inputs <- func() { said <- do(data) }:
			default:
				return nil
			}
			timer := time.NewTimer(answerWait)
			defer timer.Stop()
			select {
			case answer := <-said:
				return answer
			case <-timer.C:
			case <-o.ctx.Done():
			}
			return nil
		})
		if err != nil {
			o.log.Warn("cannot listen for requests", "what", what, "err", err)
			return func() {}
		}
		return stop
	}
	stopMark := ask("mark", func(data []byte) []byte {
		slice := sliceOf(data)
		last := o.made(slice) // first: what this makes comes after the question
		o.markAsked(slice)
		return last
	})
	stopCompare := ask("compare", func([]byte) []byte {
		o.compare(reasonAsked)
		return []byte{}
	})
	return func() { stopMark(); stopCompare() }
}

// sliceOf reads a request; -1 means all.
func sliceOf(data []byte) int {
	if n, err := strconv.Atoi(string(data)); err == nil && n >= 0 {
		return n
	}
	return -1
}
