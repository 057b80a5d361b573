package bus

import (
	"iter"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// revived finds the keys that have expired long ago and are there all the same
// ⚠: a server that was killed brings back what had expired since its last write
// of the stream's state, and then takes some seconds to let it expire again. A
// member dead for an hour would count as living meanwhile, and the living would
// give their units up to it.
//
// Two times of the server's own clock are compared: when the key was stored, and
// when the newest key of the same reading was.
type revived struct {
	newest  time.Time
	expires map[string]expiry
}

type expiry struct {
	at  time.Time
	rev uint64
}

// note takes one message of a replay.
func (r *revived) note(key string, d delivery, marker bool) {
	if d.Stored.After(r.newest) {
		r.newest = d.Stored
	}
	delete(r.expires, key)
	life, err := time.ParseDuration(d.Header.Get(jetstream.MsgTTLHeader))
	if marker || err != nil {
		return
	}
	if r.expires == nil {
		r.expires = make(map[string]expiry)
	}
	r.expires[key] = expiry{d.Stored.Add(life), d.Seq}
}

// all returns the keys that should not be there, with their revisions.
func (r *revived) all() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for key, e := range r.expires {
			if e.at.Before(r.newest) && !yield(key, e.rev) {
				return
			}
		}
	}
}
