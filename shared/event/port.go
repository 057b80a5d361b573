package event

import "errors"

// What an edge tells the frame. The edge is shared/bus; the frame does not know
// it, so the words both use stand here.
var (
	// ErrRefused: a compare-and-set met another revision than expected.
	ErrRefused = errors.New("refused: another write came first")
	// ErrNone: there is no message or value.
	ErrNone = errors.New("nothing there")
	// ErrNoResponders: nobody answers on this subject; certain, unlike a
	// time-out.
	ErrNoResponders = errors.New("nobody answers there")
)

// Feed is what one follower wants to read.
type Feed struct {
	// Name is "<role>-p<n>-<member>-<epoch>"; the edge appends a counter, so that
	// no name is used twice.
	Name string
	// Filters are subjects: see KeyFilter, NamespaceFilter and KindFilter. They
	// must not overlap.
	Filters []string
	// HeadersOnly leaves bodies out; bookmarks then have no Mark.
	HeadersOnly bool
}

// Sink takes what a feed delivers, from one goroutine, in order.
type Sink interface {
	// Begin starts a replay: everything will be delivered again. replay counts
	// 1, 2, 3…
	Begin(replay uint64)
	// Deliver takes the next message of the stream.
	Deliver(m Message)
	// Broken takes the place of a message that cannot be read.
	Broken(subject string, seq uint64, err error)
	// Gap ends a replay: something may be missing until the next has synced.
	Gap(reason string)
}

// EntrySink takes what a bucket holds and what changes in it, from one
// goroutine, in order.
type EntrySink interface {
	// Begin starts over: everything will be told again.
	Begin(replay uint64)
	// Entry tells one key. deleted is set when it was removed or has expired.
	Entry(key string, value []byte, revision uint64, deleted bool)
	// Caught: everything that stood in the bucket at Begin has been told.
	Caught()
	// Gap: something may be missing until the next Caught.
	Gap(reason string)
}

// DigestSink takes the heartbeat digests of partitions, from one goroutine, in
// order. A digest may come again.
type DigestSink interface {
	// Begin starts over: the last digest of each partition will be told again.
	Begin(replay uint64)
	// Digest takes the body of one; it belongs to the receiver.
	Digest(slice int, seq uint64, body []byte)
	// Gap: digests may be missing. Any later one says as much as they did.
	Gap(reason string)
}
