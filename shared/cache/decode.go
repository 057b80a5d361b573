package cache

import (
	"fmt"

	"github.com/millrace-io/millrace/shared/event"
)

// decode makes the entry of a live message. An entry without an object comes
// with the reason; old tells that only the watcher is too old, which passes.
func (s *store) decode(m event.Message) (e *entry, reason string, old bool) {
	e = &entry{key: m.Key, hash: m.Hash, projection: m.Projection}
	switch {
	case m.Op == event.Opaque:
		e.opaque, e.marker = true, true
		return e, "the watcher could not carry the object", false
	case m.Projection < s.input.Projection:
		e.opaque = true
		return e, "the watcher projects too old a version", true
	case s.input.Decode == nil:
		e.obj = struct{}{}
		return e, "", false
	}
	if err := s.fill(e, m); err != nil {
		*e = entry{key: m.Key, hash: m.Hash, projection: m.Projection, opaque: true}
		return e, err.Error(), false
	}
	return e, "", false
}

// fill decodes and indexes. What it calls is not ours, so it may panic: that is
// contained to the object.
func (s *store) fill(e *entry, m event.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decoding %s %s: panic: %v", m.Kind, m.Key, p)
		}
	}()
	if e.obj, err = s.input.Decode(m); err != nil {
		return fmt.Errorf("decoding %s %s: %w", m.Kind, m.Key, err)
	}
	if e.obj == nil {
		return fmt.Errorf("decoding %s %s: no object", m.Kind, m.Key)
	}
	for index, values := range s.input.Indexes {
		for _, value := range values(e.obj) {
			e.indexed = append(e.indexed, indexed{index, value})
		}
	}
	return nil
}
