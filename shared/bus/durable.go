package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/shared/event"
)

// By says which of its two partitions places an object with a role.
type By uint8

const (
	// ByKey places an object by its whole key (pk).
	ByKey By = iota
	// ByNamespace places an object by its namespace (pn).
	ByNamespace
)

// Filters returns the subjects of one partition of the given kinds: what a feed
// of it reads.
func (b *Bus) Filters(by By, kinds []event.Kind, partition int) []string {
	filters := make([]string, 0, len(kinds))
	for _, k := range kinds {
		if by == ByNamespace {
			filters = append(filters, event.NamespaceFilter(b.root, k, partition))
		} else {
			filters = append(filters, event.KeyFilter(b.root, k, partition))
		}
	}
	return filters
}

// Durable declares a role's durable positions, one per partition. They are never
// read from: they show how far the role has come, also while no replica runs.
type Durable struct {
	Role  string
	By    By
	Kinds []event.Kind
}

func durableName(role string, partition int) string {
	return fmt.Sprintf("%s-p%d", token(role), partition)
}

// EnsureDurables creates the durable positions of roles, one per partition. One
// with other filters is made anew, never edited: an edited one would skip what
// lies behind it. It needs the bootstrap identity.
func (b *Bus) EnsureDurables(ctx context.Context, roles []Durable) error {
	have, err := b.durables(ctx)
	if err != nil {
		return fmt.Errorf("ensuring durables: %w", err)
	}
	for _, d := range roles {
		for p := range b.cfg.Partitions {
			want := b.durableConfig(d, p)
			if err := b.ensureDurable(ctx, have[want.Durable], want); err != nil {
				return fmt.Errorf("ensuring durable %s: %w", want.Durable, err)
			}
		}
	}
	return nil
}

// durables lists the durable consumers of the event stream by name.
func (b *Bus) durables(ctx context.Context) (map[string]*jetstream.ConsumerInfo, error) {
	have := map[string]*jetstream.ConsumerInfo{}
	for offset := 0; ; {
		request, err := json.Marshal(map[string]int{"offset": offset})
		if err != nil {
			return nil, err
		}
		var page struct {
			Total     int                       `json:"total"`
			Consumers []*jetstream.ConsumerInfo `json:"consumers"`
		}
		if err := b.api(ctx, "CONSUMER.LIST."+b.eventStream(), request, &page); err != nil {
			return nil, err
		}
		for _, info := range page.Consumers {
			if info.Config.Durable != "" {
				have[info.Name] = info
			}
		}
		offset += len(page.Consumers)
		if len(page.Consumers) == 0 || offset >= page.Total {
			return have, nil
		}
	}
}

func (b *Bus) durableConfig(d Durable, partition int) jetstream.ConsumerConfig {
	filters := b.Filters(d.By, d.Kinds, partition)
	slices.Sort(filters)
	name := durableName(d.Role, partition)
	return jetstream.ConsumerConfig{
		Name:           name,
		Durable:        name,
		Description:    "millrace: position of " + d.Role,
		DeliverPolicy:  jetstream.DeliverAllPolicy,
		AckPolicy:      jetstream.AckNonePolicy,
		FilterSubjects: slices.Compact(filters),
	}
}

func (b *Bus) ensureDurable(ctx context.Context, have *jetstream.ConsumerInfo, want jetstream.ConsumerConfig) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if have != nil {
		if slices.Equal(filtersOf(have.Config), want.FilterSubjects) && have.Config.AckPolicy == want.AckPolicy {
			return nil
		}
		err := b.api(ctx, "CONSUMER.DELETE."+b.eventStream()+"."+want.Durable, nil, nil)
		if err != nil && !consumerGone(err) {
			return err
		}
		b.log.Info("made durable anew, its filters were others", "durable", want.Durable)
	}
	_, err := b.js.CreateConsumer(ctx, b.eventStream(), want)
	if errors.Is(err, jetstream.ErrConsumerExists) {
		return nil // another process was first; the next round compares
	}
	return sorted(err)
}

// filtersOf returns a consumer's filters, sorted; a single one may stand in
// either of two fields.
func filtersOf(c jetstream.ConsumerConfig) []string {
	filters := slices.Clone(c.FilterSubjects)
	if c.FilterSubject != "" {
		filters = append(filters, c.FilterSubject)
	}
	slices.Sort(filters)
	return filters
}

func consumerGone(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == jetstream.JSErrCodeConsumerNotFound || api.ErrorCode == jetstream.JSErrCodeConsumerDoesNotExist)
}

// MoveDurable sets a role's durable position on a partition: seq is the lowest
// stream sequence not yet reconciled.
func (b *Bus) MoveDurable(ctx context.Context, role string, partition int, seq uint64) error {
	request, err := json.Marshal(map[string]uint64{"seq": seq})
	if err != nil {
		return err
	}
	name := durableName(role, partition)
	if err := b.api(ctx, "CONSUMER.RESET."+b.eventStream()+"."+name, request, nil); err != nil {
		return fmt.Errorf("moving durable %s: %w", name, err)
	}
	return nil
}

// Backlog returns the number of messages at or behind a role's durable position
// on a partition. Unit: messages.
func (b *Bus) Backlog(ctx context.Context, role string, partition int) (pending uint64, err error) {
	name := durableName(role, partition)
	var info jetstream.ConsumerInfo
	if err := b.api(ctx, "CONSUMER.INFO."+b.eventStream()+"."+name, nil, &info); err != nil {
		return 0, fmt.Errorf("reading durable %s: %w", name, err)
	}
	return info.NumPending, nil
}
