package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/shared/event"
)

const (
	headerKVOperation = "KV-Operation"
	kvDeleted         = "DEL"
)

// KV is one bucket. It is written through its stream's subjects, because the
// library's buckets cannot renew a key that expires.
type KV struct {
	bus     *Bus
	bucket  Bucket
	stream  string
	subject string // with its last dot
}

// FollowFacts is Follow of the bucket of facts.
func (b *Bus) FollowFacts(ctx context.Context, filter string, sink KVSink) error {
	return b.KV(Facts).Follow(ctx, filter, sink)
}

// KV returns a bucket.
func (b *Bus) KV(bucket Bucket) *KV {
	return &KV{bus: b, bucket: bucket, stream: b.bucketStream(bucket), subject: b.bucketSubject(bucket)}
}

// Get returns a key's value and revision. ErrNone if there is no value; rev is
// then the revision of the delete marker, or 0. It asks the leader, so it sees
// every write that was acknowledged.
func (k *KV) Get(ctx context.Context, key string) (value []byte, rev uint64, err error) {
	m, err := k.bus.lastRaw(ctx, k.stream, k.subject+key)
	if err != nil {
		return nil, 0, err
	}
	if isMarker(m.header) {
		return nil, m.Seq, fmt.Errorf("reading key %s: %w", key, ErrNone)
	}
	return m.Data, m.Seq, nil
}

// Put writes a key if its revision is expect and returns the new revision;
// ErrRefused otherwise. expect 0 means that the key must have no value: a delete
// marker counts as none. With ttl the key vanishes by itself unless it is
// written again; unit: time, at least 1 s; 0: it stays. After any error but
// ErrRefused, ErrTooLarge and ErrFull the outcome is unknown.
func (k *KV) Put(ctx context.Context, key string, value []byte, expect uint64, ttl time.Duration) (rev uint64, err error) {
	rev, err = k.write(ctx, key, nats.Header{}, value, expect, ttl)
	if expect != 0 || !errors.Is(err, ErrRefused) {
		return rev, err
	}
	_, marker, got := k.Get(ctx, key)
	switch {
	case got == nil:
		return 0, err // there is a value
	case !errors.Is(got, ErrNone):
		return 0, got
	}
	return k.write(ctx, key, nats.Header{}, value, marker, ttl)
}

// Delete deletes a key if its revision is expect; ErrRefused otherwise. Followers
// see it deleted; the marker itself goes after an hour.
func (k *KV) Delete(ctx context.Context, key string, expect uint64) error {
	_, err := k.write(ctx, key, nats.Header{headerKVOperation: {kvDeleted}}, nil, expect, deletedLife)
	return err
}

func (k *KV) write(ctx context.Context, key string, h nats.Header, value []byte, expect uint64, ttl time.Duration) (uint64, error) {
	if err := validKey(key); err != nil {
		return 0, err
	}
	rev, err := k.bus.publisher.wait(ctx, &nats.Msg{
		Subject: k.subject + key,
		Header:  conditions(h, expect, ttl),
		Data:    value,
	})
	k.bus.metrics.kvCAS.WithLabelValues(string(k.bucket), resultOf(err)).Inc()
	if err != nil {
		return 0, fmt.Errorf("writing key %s of %s: %w", key, k.bucket, err)
	}
	return rev, nil
}

// validKey refuses what a bucket's tools would not read back.
func validKey(key string) error {
	bad := strings.ContainsFunc(key, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("-/_=.", r)
	})
	if key == "" || bad || key[0] == '.' || key[len(key)-1] == '.' || strings.Contains(key, "..") {
		return fmt.Errorf("key %s is not valid in a bucket", strconv.Quote(key))
	}
	return nil
}

// isMarker reports whether a message says that its key has no value: it was
// deleted, purged, or expired.
func isMarker(h nats.Header) bool {
	if op := h[headerKVOperation]; len(op) > 0 && (op[0] == kvDeleted || op[0] == "PURGE") {
		return true
	}
	return len(h[jetstream.MarkerReasonHeader]) > 0
}

// KVSink receives what happens in a bucket.
type KVSink = event.EntrySink

// Follow reads the keys that match filter (">" for all) into sink until ctx
// ends, whose error it returns, like Bus.Follow.
func (k *KV) Follow(ctx context.Context, filter string, sink KVSink) error {
	b := k.bus
	filters := []string{k.subject + filter}
	caught, seq, back := false, uint64(0), revived{}
	check := func(ctx context.Context, pending uint64) error {
		if caught || pending > 0 {
			return nil
		}
		done, err := b.complete(ctx, k.stream, filters, seq)
		if err != nil {
			return err
		}
		if caught = done; done {
			for key, rev := range back.all() {
				sink.Entry(key, nil, rev, true)
			}
			sink.Caught()
		}
		return nil
	}
	feed := Feed{Name: fmt.Sprintf("kv-%s-%s", k.bucket, b.unique), Filters: filters}
	return b.follow(ctx, k.stream, feed, nil, followed{
		begin: func(replay uint64) {
			caught, seq, back = false, 0, revived{}
			sink.Begin(replay)
		},
		opened: check,
		got: func(ctx context.Context, d delivery) error {
			seq = d.Seq
			key := strings.TrimPrefix(d.Subject, k.subject)
			marker := isMarker(d.Header)
			if !caught {
				back.note(key, d, marker)
			}
			if marker {
				sink.Entry(key, nil, d.Seq, true)
			} else {
				sink.Entry(key, d.Data, d.Seq, false)
			}
			return check(ctx, d.Pending)
		},
		gap: sink.Gap,
	})
}
