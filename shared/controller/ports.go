package controller

import (
	"context"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// Bus is what the frame needs of NATS; *bus.Bus is one.
type Bus interface {
	// Cluster and Partitions are those of the installation.
	Cluster() string
	Partitions() int
	// Follow reads feed after feed into sink until ctx ends. A value from again
	// forces a new replay.
	Follow(ctx context.Context, f event.Feed, sink event.Sink, again <-chan struct{}) error
	// MoveDurable sets the durable position of a role on a partition.
	MoveDurable(ctx context.Context, role string, partition int, seq uint64) error
	// DeadLetter records that a key cannot be processed, ClearDeadLetter takes
	// it back, DeadLetters returns all there are.
	DeadLetter(ctx context.Context, letter *millracev1.DeadLetter) error
	ClearDeadLetter(ctx context.Context, role string, kind event.Kind, key event.Key) error
	DeadLetters(ctx context.Context) ([]*millracev1.DeadLetter, error)
	// RecordDecision appends one record and returns; done is called from another
	// goroutine, exactly once.
	RecordDecision(d *millracev1.Decision, done func(seq uint64, err error))
	// Answer answers requests on a subject until stop is called; every answerer
	// gets every request. A nil answer is none.
	Answer(subject string, fn func(data []byte) []byte) (stop func(), err error)
	// FollowFacts tells sink what the keys under filter of the bucket of facts
	// hold, until ctx ends.
	FollowFacts(ctx context.Context, filter string, sink event.EntrySink) error
	// Ask sends one request and returns the answer.
	Ask(ctx context.Context, subject string, data []byte) ([]byte, error)
}

// Grant is the right to work on one partition; *lease.Grant is one.
type Grant interface {
	// Index is the partition, Epoch grows with every holder.
	Index() int
	Epoch() uint64
	Member() string
	// Valid returns nil while nobody else can hold the right, by a clock that
	// counts suspension.
	Valid() error
	// Draining is closed when the partition is to be handed over.
	Draining() <-chan struct{}
}

// Lease claims partitions; *lease.Lease is a Lease[*lease.Grant]. hold is called
// in a goroutine of its own for every partition claimed; ctx ends when it is
// lost, and it is given up when hold returns.
type Lease[G Grant] interface {
	// Run returns nil when ctx has ended; it may be called again then.
	Run(ctx context.Context, hold func(ctx context.Context, g G) error) error
	// Idle takes no part until ctx ends, and says so when asked.
	Idle(ctx context.Context)
}
