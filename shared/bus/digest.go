package bus

import (
	"context"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/millrace-io/millrace/shared/event"
)

func (b *Bus) digestRoot() string { return "beats." + event.Token(b.cfg.Cluster) }

// PublishDigest sends the heartbeat digest of a slice, over the one before; done
// is called as by Publish. Nothing is expected of the one before: readers compare
// epochs, a successor that starts from a digest too old starts from ages too
// small, and the next second writes over it.
func (b *Bus) PublishDigest(slice int, body []byte, done func(seq uint64, err error)) {
	if err := b.fits(nil, body); err != nil {
		b.publisher.refuse(done, err)
		return
	}
	b.publisher.publish(&nats.Msg{
		Subject: b.digestRoot() + "." + strconv.Itoa(slice),
		Data:    body,
	}, done)
}

// LastDigest returns the body of the last digest of a slice; ErrNone if there is
// none. It asks the leader of the stream, as Last does.
func (b *Bus) LastDigest(ctx context.Context, slice int) ([]byte, error) {
	raw, err := b.lastRaw(ctx, b.digestStream(), b.digestRoot()+"."+strconv.Itoa(slice))
	if err != nil {
		return nil, err
	}
	return raw.Data, nil
}

// FollowDigests reads the digests of slices (nil: of all) into sink until ctx
// ends, whose error it returns, like Follow.
func (b *Bus) FollowDigests(ctx context.Context, name string, slices []int, sink event.DigestSink) error {
	filters := make([]string, 0, max(len(slices), 1))
	for _, i := range slices {
		filters = append(filters, b.digestRoot()+"."+strconv.Itoa(i))
	}
	if slices == nil {
		filters = append(filters, b.digestRoot()+".>")
	}
	return b.follow(ctx, b.digestStream(), Feed{Name: name, Filters: filters}, nil, followed{
		begin: sink.Begin,
		gap:   sink.Gap,
		got: func(_ context.Context, d delivery) error {
			slice, err := strconv.Atoi(strings.TrimPrefix(d.Subject, b.digestRoot()+"."))
			if err != nil {
				b.metrics.broken.Inc()
				return nil //nolint:nilerr // a foreign subject carries no digest
			}
			sink.Digest(slice, d.Seq, d.Data)
			return nil
		},
	})
}
