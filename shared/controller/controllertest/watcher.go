package controllertest

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Object is an object of the API.
type Object struct {
	Kind    event.Kind
	Key     event.Key
	UID     string
	Version uint64
	Body    string
}

// Put creates or updates an object and returns it.
func (w *World) Put(kind event.Kind, key event.Key, body string) Object {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.version++
	o, exists := w.objects[kind][key]
	if !exists {
		w.uids++
		o = Object{Kind: kind, Key: key, UID: fmt.Sprintf("uid-%d", w.uids)}
	}
	o.Version, o.Body = w.version, body
	if w.objects[kind] == nil {
		w.objects[kind] = make(map[event.Key]Object)
	}
	w.objects[kind][key] = o
	if watcher := w.watchers[kind]; watcher != nil {
		watcher.observe(o)
	}
	return o
}

// Delete deletes an object.
func (w *World) Delete(kind event.Kind, key event.Key) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	o, exists := w.objects[kind][key]
	if !exists {
		return
	}
	w.version++
	delete(w.objects[kind], key)
	if watcher := w.watchers[kind]; watcher != nil && !watcher.paused {
		watcher.p.Observe(key, protocol.Object{Op: event.Delete, UID: o.UID, Version: w.version}, "")
		watcher.act()
	}
}

// Get reads an object live.
func (w *World) Get(kind event.Kind, key event.Key) (Object, bool) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	o, exists := w.objects[kind][key]
	return o, exists
}

// Objects returns all objects of a kind.
func (w *World) Objects(kind event.Kind) map[event.Key]Object {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	if w.objects[kind] == nil {
		return make(map[event.Key]Object)
	}
	return maps.Clone(w.objects[kind])
}

// Watcher carries one kind to the stream.
type Watcher struct {
	w          *World
	kind       event.Kind
	epoch      uint64
	projection uint32
	p          *protocol.Publisher[string]
	paused     bool
	// Mute keeps bookmarks back. Guarded by World.Mu.
	Mute bool
}

// Watch lets a new watcher take a kind over, which is there at once.
func (w *World) Watch(kind event.Kind, projection uint32) *Watcher {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	x := &Watcher{w: w, kind: kind, epoch: 1, projection: projection}
	if before := w.watchers[kind]; before != nil {
		x.epoch = before.epoch + 1
	}
	w.watchers[kind] = x
	x.p = protocol.NewPublisher[string](kind, w.partitions, x.epoch, projection, 256)
	for _, m := range w.last {
		if m.Kind == kind {
			x.stored(m)
		}
	}
	w.version++
	x.relist()
	return x
}

func (x *Watcher) stored(m event.Message) {
	if m.Op == event.Bookmark {
		x.p.StoredMark(m)
		return
	}
	x.p.Stored(m)
}

// relist takes all objects as they are. Mu is held.
func (x *Watcher) relist() {
	var items []protocol.Item[string]
	for key, o := range x.w.objects[x.kind] {
		items = append(items, protocol.Item[string]{Key: key, Object: x.object(o), Body: o.Body})
	}
	if err := x.p.Replaced(x.w.version, items); err != nil {
		panic(err)
	}
	x.act()
}

// Pause stops the watch: changes reach the stream only after Resume.
func (x *Watcher) Pause() {
	x.w.Mu.Lock()
	defer x.w.Mu.Unlock()
	x.paused = true
}

// Resume lists again and goes on.
func (x *Watcher) Resume() {
	x.w.Mu.Lock()
	defer x.w.Mu.Unlock()
	x.paused = false
	x.relist()
}

// Absent says that the API server does not serve the kind.
func (x *Watcher) Absent() {
	x.w.Mu.Lock()
	defer x.w.Mu.Unlock()
	x.p.SetAbsent(x.w.version)
	x.act()
}

// SetMute keeps bookmarks back, or not.
func (x *Watcher) SetMute(mute bool) {
	x.w.Mu.Lock()
	defer x.w.Mu.Unlock()
	x.Mute = mute
}

func (x *Watcher) object(o Object) protocol.Object {
	return protocol.Object{Op: event.Put, UID: o.UID, Version: o.Version, Hash: event.HashBody([]byte(o.Body))}
}

func (x *Watcher) observe(o Object) {
	if !x.paused {
		x.p.Observe(o.Key, x.object(o), o.Body)
		x.act()
	}
}

func (x *Watcher) asked(what string, data []byte) {
	if x.Mute {
		return
	}
	if what == "compare" {
		c := x.p.BeginCompare()
		for _, m := range x.w.last {
			if m.Kind == x.kind {
				c.Found(m)
			}
		}
		x.p.EndCompare(c)
	} else if i, err := strconv.Atoi(string(data)); err == nil && !x.paused {
		x.p.Mark(i)
	}
	x.act()
}

// made names the last bookmark of a slice that was published. w.Mu is held.
func (x *Watcher) made(data []byte) []byte {
	slice, _ := strconv.Atoi(string(data))
	var counter uint64
	if m := x.find(event.Message{Kind: x.kind, Slice: slice, Op: event.Bookmark}); m != nil && m.Epoch == x.epoch {
		counter = m.Mark.Counter
	}
	return fmt.Appendf(nil, "%d %d", x.epoch, counter)
}

// Mark publishes a bookmark of every slice now.
func (x *Watcher) Mark() {
	x.w.Mu.Lock()
	defer x.w.Mu.Unlock()
	if x.Mute || x.paused {
		return
	}
	for i := range x.w.partitions {
		x.p.Progress(x.w.version)
		x.p.Mark(i)
	}
	x.act()
}

// Tick lets all watchers publish bookmarks once a second until ctx ends.
func (w *World) Tick(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			w.Mu.Lock()
			watchers := make([]*Watcher, 0, len(w.watchers))
			for _, x := range w.watchers {
				watchers = append(watchers, x)
			}
			w.Mu.Unlock()
			for _, x := range watchers {
				x.Mark()
			}
		}
	}
}

// act carries out the publisher's effects; the stream answers at once. Mu is
// held.
func (x *Watcher) act() {
	for effects := x.p.Next(); len(effects) > 0; effects = x.p.Next() {
		for _, e := range effects {
			x.do(e)
		}
	}
}

func (x *Watcher) do(e protocol.Effect[string]) {
	m := event.Message{
		Kind: x.kind, Key: e.Key, Op: e.Object.Op, UID: e.Object.UID, Version: e.Object.Version, Hash: e.Object.Hash,
		Upto: e.Upto, Epoch: x.epoch, Projection: x.projection, Observed: time.Now(), Slice: e.Slice,
	}
	switch e.Do {
	case protocol.DoPublish:
		m.Body = []byte(e.Body)
		if seq, ok := x.w.publish(m, e.Expect); ok {
			x.p.Acked(e.Key, seq)
		} else {
			x.p.Refused(e.Key)
		}
	case protocol.DoRead:
		x.p.Last(e.Key, x.find(event.Message{Kind: x.kind, Key: e.Key, Op: event.Put}))
	case protocol.DoFetch:
		o, exists := x.w.objects[x.kind][e.Key]
		if !exists {
			x.p.Fetched(e.Key, protocol.Object{Op: event.Delete, Version: x.w.version}, "")
			return
		}
		x.p.Fetched(e.Key, x.object(o), o.Body)
	case protocol.DoMark:
		m.Op, m.Mark = event.Bookmark, &e.Mark
		if seq, ok := x.w.publish(m, e.Expect); ok {
			x.p.MarkAcked(e.Slice, seq)
		} else {
			x.p.MarkRefused(e.Slice)
		}
	case protocol.DoReadMark:
		x.p.MarkLast(e.Slice, x.find(event.Message{Kind: x.kind, Slice: e.Slice, Op: event.Bookmark}))
	}
}

func (x *Watcher) find(like event.Message) *event.Message {
	m, ok := x.w.last[x.w.subject(like)]
	if !ok {
		return nil
	}
	return &m
}
