package controller

import "github.com/millrace-io/millrace/shared/event"

// item is one key of one claim of a partition. A partition claimed again is
// another item, so that what waited for the lost claim is told apart.
type item struct {
	p   *Partition
	key event.Key
}

// lane says how urgent an item is.
type lane uint8

const (
	live  lane = iota // something has changed
	sweep             // every key is looked at once
)

// sweepShare is how many items are served for each one of the sweep, while both
// lanes are full: live changes pass, and the sweep goes on. Unit: items. Source:
// ours; a sweep of 10 000 keys delays a live one by one key, not by all.
const sweepShare = 4

// lanes is the order inside the work queue: two queues, served in turn. The work
// queue calls it under its lock.
type lanes struct {
	next   lane // where Push puts; set under work.mu
	where  map[item]lane
	queues [2]fifo
	counts [2]int
	served int
}

func newLanes() *lanes { return &lanes{where: make(map[item]lane)} }

// Push implements workqueue.Queue.
func (l *lanes) Push(i item) {
	l.where[i] = l.next
	l.counts[l.next]++
	l.queues[l.next].push(i)
}

// Touch implements workqueue.Queue: what waits in the sweep and then changes is
// live.
func (l *lanes) Touch(i item) {
	if l.next == live && l.where[i] == sweep {
		l.counts[sweep]--
		l.Push(i)
	}
}

// Len implements workqueue.Queue.
func (l *lanes) Len() int { return l.counts[live] + l.counts[sweep] }

// Pop implements workqueue.Queue.
func (l *lanes) Pop() item {
	l.served++
	from := live
	if l.counts[live] == 0 || l.counts[sweep] > 0 && l.served%sweepShare == 0 {
		from = sweep
	}
	for {
		i := l.queues[from].pop()
		if at, waits := l.where[i]; waits && at == from {
			delete(l.where, i)
			l.counts[from]--
			return i
		}
	}
}

// fifo is a queue in a slice.
type fifo struct {
	items []item
	head  int
}

func (f *fifo) push(i item) {
	if f.head > 64 && f.head > len(f.items)/2 {
		n := copy(f.items, f.items[f.head:])
		clear(f.items[n:])
		f.items, f.head = f.items[:n], 0
	}
	f.items = append(f.items, i)
}

func (f *fifo) pop() item {
	i := f.items[f.head]
	f.items[f.head] = item{}
	f.head++
	return i
}
