package watcher

import (
	"context"
	"time"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// stream is what an owner needs of the bus; *bus.Bus.
type stream interface {
	Root() string
	Cluster() string
	Partitions() int
	State() bus.State
	Changes() (<-chan struct{}, func())
	Publish(p bus.Publication, done func(seq uint64, err error))
	Last(ctx context.Context, kind event.Kind, key event.Key) (event.Message, error)
	LastMark(ctx context.Context, kind event.Kind, slice int) (event.Message, error)
	Snapshot(ctx context.Context, kind event.Kind, fn func(event.Message)) error
	Follow(ctx context.Context, f event.Feed, sink event.Sink, again <-chan struct{}) error
	Answer(subject string, fn func(data []byte) []byte) (stop func(), err error)
	PublishDigest(slice int, body []byte, done func(seq uint64, err error))
	LastDigest(ctx context.Context, slice int) ([]byte, error)
	DeadLetter(ctx context.Context, letter *millracev1.DeadLetter) error
	ClearDeadLetter(ctx context.Context, role string, kind event.Kind, key event.Key) error
}

// server is what an owner needs of the API server.
type server interface {
	// Watch prepares to list and watch a kind, of one namespace or, if that is
	// empty, of all; nothing runs yet.
	Watch(kind event.Kind, namespace string, metadataOnly bool, events kube.Events) watch
	// Get reads the newest state of one object; kube.ErrNotFound.
	Get(ctx context.Context, kind event.Kind, metadataOnly bool, key event.Key) (kube.Object, error)
	// Answers asks the server itself whether it works.
	Answers(ctx context.Context) error
}

// watch is one list and watch; *kube.Watch.
type watch interface {
	Run(ctx context.Context) error
	Relist()
	Alive(now time.Time) (bool, string)
	Absent() bool
	Proof() time.Time
}

// apiServer makes *kube.API a server.
type apiServer struct{ *kube.API }

func (a apiServer) Watch(kind event.Kind, namespace string, metadataOnly bool, events kube.Events) watch {
	return a.NewWatch(kind, metadataOnly, events).In(namespace)
}

func (a apiServer) Get(ctx context.Context, kind event.Kind, metadataOnly bool, key event.Key) (kube.Object, error) {
	if metadataOnly {
		return a.GetMetadata(ctx, kind, key)
	}
	return a.GetOne(ctx, kind, key)
}
