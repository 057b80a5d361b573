// Package controllertest is a small world for the frame: a stream that keeps the
// last message of each subject, an API server that keeps objects, watchers that
// carry one to the other by the real protocol.Publisher, and leases that are
// granted by hand. It has no clock but time, so it lives in testing/synctest.
package controllertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// cluster is the id of the world's cluster.
const cluster = "test"

// World is all of it. It implements controller.Bus.
type World struct {
	// Asked are the requests that came, as subject and data. Moves are the
	// durable positions, per partition; Letters the dead letters. Guarded by Mu.
	Mu      sync.Mutex
	Asked   []string
	Moves   map[int][]uint64
	Letters map[string]*millracev1.DeadLetter
	// Records are the decisions recorded; NoRecords refuses them. Guarded by Mu.
	Records   []*millracev1.Decision
	NoRecords bool
	// HiddenFacts: see HideFacts.
	HiddenFacts bool
	hiddenFact  string

	partitions int
	seq        uint64
	last       map[string]event.Message
	order      []place
	changed    chan struct{}
	broken     int
	held       bool // what is delivered stays under way
	released   int  // but for so many messages

	version  uint64
	uids     int
	objects  map[event.Kind]map[event.Key]Object
	watchers map[event.Kind]*Watcher
	answers  map[string]func([]byte) []byte
	facts    map[string]string
	turned   chan struct{} // closed when facts change
}

type place struct {
	seq     uint64
	subject string
}

// New returns an empty world.
func New(partitions int) *World {
	return &World{
		partitions: partitions, seq: 1000, changed: make(chan struct{}),
		Moves: make(map[int][]uint64), Letters: make(map[string]*millracev1.DeadLetter),
		last: make(map[string]event.Message), watchers: make(map[event.Kind]*Watcher),
		objects: make(map[event.Kind]map[event.Key]Object),
		answers: make(map[string]func([]byte) []byte),
		facts:   make(map[string]string), turned: make(chan struct{}),
	}
}

// Cluster implements controller.Bus, as all that follow.
func (w *World) Cluster() string { return cluster }

// Partitions returns the number of partitions.
func (w *World) Partitions() int { return w.partitions }

// subject returns where a message stands.
func (w *World) subject(m event.Message) string {
	root := event.Root(cluster)
	if m.Op == event.Bookmark {
		return event.BookmarkSubject(root, m.Kind, m.Slice)
	}
	return event.Subject(root, m.Kind, m.Key, partition.OfKey(m.Key, w.partitions), partition.OfNamespace(m.Key, w.partitions))
}

// publish stores m if expect is the last sequence of its subject. Mu is held.
func (w *World) publish(m event.Message, expect uint64) (seq uint64, ok bool) {
	at := w.subject(m)
	if w.last[at].Seq != expect {
		return 0, false
	}
	w.seq++
	m.Seq = w.seq
	w.last[at] = m
	w.order = append(w.order, place{m.Seq, at})
	w.signal()
	return m.Seq, true
}

// Force stores m whatever stands there: a server that brings a key back, or
// another writer.
func (w *World) Force(m event.Message) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.publish(m, w.last[w.subject(m)].Seq)
}

// Vanish takes an object's last message out of the stream without a word.
func (w *World) Vanish(kind event.Kind, key event.Key) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	delete(w.last, w.subject(event.Message{Kind: kind, Key: key, Op: event.Put}))
}

// Break interrupts every feed.
func (w *World) Break() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.broken++
	w.signal()
}

// Hold keeps what feeds deliver under way, until it is held no more: it has left
// the stream, and comes even if something newer stands there by then.
func (w *World) Hold(held bool) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.held, w.released = held, 0
	w.signal()
}

// Release lets n messages through that are held.
func (w *World) Release(n int) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.released += n
	w.signal()
}

func (w *World) signal() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// arrives reports whether the next message under way comes now. Mu is held.
func (w *World) arrives(underWay []event.Message) bool {
	if len(underWay) == 0 || w.held && w.released == 0 {
		return false
	}
	if w.held {
		w.released--
	}
	return true
}

// Seq returns the last sequence of the stream.
func (w *World) Seq() uint64 {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	return w.seq
}

// Follow delivers last values and what comes, again after every Break.
func (w *World) Follow(ctx context.Context, f event.Feed, sink event.Sink, again <-chan struct{}) error {
	for replay := uint64(1); ; replay++ {
		reason := w.followOnce(ctx, f, replay, sink, again)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		sink.Gap(reason)
	}
}

func (w *World) followOnce(ctx context.Context, f event.Feed, replay uint64, sink event.Sink, again <-chan struct{}) string {
	w.Mu.Lock()
	broken := w.broken
	w.Mu.Unlock()
	sink.Begin(replay)
	var underWay []event.Message
	for at := uint64(0); ; {
		w.Mu.Lock()
		m, found := w.after(at, f.Filters)
		if found {
			at, underWay = m.Seq, append(underWay, m)
		}
		arrived := w.arrives(underWay)
		changed, cut := w.changed, w.broken != broken
		w.Mu.Unlock()
		switch {
		case cut:
			return "broken"
		case ctx.Err() != nil:
			return "over"
		case arrived:
			sink.Deliver(underWay[0])
			underWay = underWay[1:]
			continue
		case found:
			continue
		}
		select {
		case <-changed:
		case <-again:
			return "asked for again"
		case <-ctx.Done():
			return "over"
		}
	}
}

// after returns the next message above a sequence that matches. Mu is held.
func (w *World) after(seq uint64, filters []string) (event.Message, bool) {
	i, _ := slices.BinarySearchFunc(w.order, seq+1, func(p place, seq uint64) int { return cmp.Compare(p.seq, seq) })
	for _, p := range w.order[i:] {
		m := w.last[p.subject]
		if m.Seq == p.seq && slices.ContainsFunc(filters, func(f string) bool { return matches(f, p.subject) }) {
			return m, true
		}
	}
	return event.Message{}, false
}

// matches reports whether a subject matches a filter that ends in ">".
func matches(filter, subject string) bool {
	want, have := strings.Split(filter, "."), strings.Split(subject, ".")
	for i, token := range want {
		if token == ">" {
			return len(have) > i
		}
		if i >= len(have) || token != "*" && token != have[i] {
			return false
		}
	}
	return len(want) == len(have)
}

// MoveDurable records a position.
func (w *World) MoveDurable(_ context.Context, _ string, partition int, seq uint64) error {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Moves[partition] = append(w.Moves[partition], seq)
	return nil
}

// DeadLetter records a letter.
func (w *World) DeadLetter(_ context.Context, letter *millracev1.DeadLetter) error {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	key := event.Key{Namespace: letter.GetNamespace(), Name: letter.GetName()}
	w.Letters[letter.GetKind()+" "+key.String()] = letter
	return nil
}

// ClearDeadLetter takes a letter back.
func (w *World) ClearDeadLetter(_ context.Context, _ string, kind event.Kind, key event.Key) error {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	delete(w.Letters, string(kind)+" "+key.String())
	return nil
}

// DeadLetters returns all letters.
func (w *World) DeadLetters(context.Context) (all []*millracev1.DeadLetter, err error) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	for _, letter := range w.Letters {
		all = append(all, letter)
	}
	return all, nil
}

// RecordDecision keeps a record.
func (w *World) RecordDecision(d *millracev1.Decision, done func(seq uint64, err error)) {
	w.Mu.Lock()
	refused := w.NoRecords
	if !refused {
		w.Records = append(w.Records, d)
	}
	w.Mu.Unlock()
	var err error
	if refused {
		err = errors.New("stream is full")
	}
	go done(0, err)
}

// SetFact writes a fact; empty deletes it. LoseFacts wipes them all without a
// word.
func (w *World) SetFact(key, value string) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.facts[key] = value
	close(w.turned)
	w.turned = make(chan struct{})
}

// LoseFacts wipes all facts, as a NATS server does that lost its store.
func (w *World) LoseFacts() {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	clear(w.facts)
	close(w.turned)
	w.turned = make(chan struct{})
}

// HideFacts keeps the bucket away until it is called with false.
func (w *World) HideFacts(hide bool) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.HiddenFacts = hide
	close(w.turned)
	w.turned = make(chan struct{})
}

// HideFact keeps one key of the bucket away until it is called with none.
func (w *World) HideFact(key string) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.hiddenFact = key
	close(w.turned)
	w.turned = make(chan struct{})
}

// FollowFacts tells one key, the filter, anew whenever any fact changes.
func (w *World) FollowFacts(ctx context.Context, filter string, sink event.EntrySink) error {
	for replay := uint64(1); ; replay++ {
		w.Mu.Lock()
		value, exists := w.facts[filter]
		hidden, turned := w.HiddenFacts || filter == w.hiddenFact, w.turned
		w.Mu.Unlock()
		if !hidden {
			sink.Begin(replay)
			if exists {
				sink.Entry(filter, []byte(value), replay, value == "")
			}
			sink.Caught()
		}
		select {
		case <-turned:
			sink.Gap("it changed")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Answer lets Ask reach fn.
func (w *World) Answer(subject string, fn func(data []byte) []byte) (stop func(), err error) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.answers[subject] = fn
	return func() {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		delete(w.answers, subject)
	}, nil
}

// Ask answers what a watcher answers, or whoever called Answer.
func (w *World) Ask(_ context.Context, subject string, data []byte) ([]byte, error) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.Asked = append(w.Asked, subject+" "+string(data))
	if fn := w.answers[subject]; fn != nil {
		w.Mu.Unlock()
		defer w.Mu.Lock()
		return fn(data), nil
	}
	tokens := strings.Split(subject, ".")
	if len(tokens) < 5 {
		return nil, event.ErrNoResponders
	}
	kind, err := event.ParseToken(tokens[3])
	if err != nil {
		return nil, fmt.Errorf("parsing subject %s: %w", subject, err)
	}
	watcher := w.watchers[event.Kind(kind)]
	if watcher == nil {
		return nil, event.ErrNoResponders
	}
	last := watcher.made(data)
	watcher.asked(tokens[4], data)
	return last, nil
}
