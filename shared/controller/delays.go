package controller

import (
	"sync"
	"time"
)

// delays holds one timer per item. Setting an item again moves its timer, unlike
// that of client-go's delaying queue, which keeps the earlier one and so wakes a
// key for nothing.
type delays struct {
	fire func(item)

	mu     sync.Mutex
	timers map[item]alarm
	closed bool
}

type alarm struct {
	*time.Timer

	at time.Time
}

func newDelays(fire func(item)) *delays {
	return &delays{fire: fire, timers: make(map[item]alarm)}
}

// set fires i after d, and not when it was to fire before.
func (d *delays) set(i item, after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if old, set := d.timers[i]; set {
		old.Stop()
	}
	var timer *time.Timer
	timer = time.AfterFunc(after, func() {
		d.mu.Lock()
		current := d.timers[i].Timer == timer
		if current {
			delete(d.timers, i)
		}
		d.mu.Unlock()
		if current {
			d.fire(i)
		}
	})
	d.timers[i] = alarm{timer, time.Now().Add(after)}
}

// due returns when i fires.
func (d *delays) due(i item) (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a, set := d.timers[i]
	return a.at, set
}

// clear takes i's timer away.
func (d *delays) clear(i item) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(i)
}

// drop takes away all timers of a partition.
func (d *delays) drop(p *Partition) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.timers {
		if i.p == p {
			d.remove(i)
		}
	}
}

// close takes all timers away for good.
func (d *delays) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	for i := range d.timers {
		d.remove(i)
	}
}

func (d *delays) remove(i item) {
	if timer, set := d.timers[i]; set {
		timer.Stop()
		delete(d.timers, i)
	}
}
