// Package event holds the words of the feed: what one message on the bus says
// about one Kubernetes object, and where on the bus it stands. It is pure and
// knows neither NATS nor Kubernetes.
package event

import (
	"strings"
	"time"
)

// Kind names one resource of the API, written resource.group as kubectl takes
// it: "pods", "endpointslices.discovery.k8s.io".
type Kind string

// Resource returns the plural resource name, without the group.
func (k Kind) Resource() string {
	resource, _, _ := strings.Cut(string(k), ".")
	return resource
}

// Group returns the API group; empty for the core group.
func (k Kind) Group() string {
	_, group, _ := strings.Cut(string(k), ".")
	return group
}

// Key identifies one object of a kind. Namespace is empty for cluster-scoped
// kinds.
type Key struct {
	Namespace string
	Name      string
}

// String returns "namespace/name", or "name" where there is no namespace.
func (k Key) String() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// MarshalText is String: a line of the log shows a key as people write it.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Compare orders keys by namespace, then name.
func (k Key) Compare(other Key) int {
	if c := strings.Compare(k.Namespace, other.Namespace); c != 0 {
		return c
	}
	return strings.Compare(k.Name, other.Name)
}

// ParseKey is the inverse of Key.String for any valid Kubernetes name.
func ParseKey(s string) Key {
	namespace, name, found := strings.Cut(s, "/")
	if !found {
		return Key{Name: s}
	}
	return Key{Namespace: namespace, Name: name}
}

// Op says what a message asserts about its key.
type Op uint8

const (
	// Put carries the object as it is.
	Put Op = iota + 1
	// Delete is a tombstone: the object is gone; there is no body.
	Delete
	// Opaque stands for an object that exists and could not be carried; there
	// is no body, and keys that read it wait.
	Opaque
	// Bookmark carries no object: see Mark.
	Bookmark
)

// String returns the word used in headers and logs.
func (o Op) String() string {
	switch o {
	case Put:
		return "put"
	case Delete:
		return "delete"
	case Opaque:
		return "opaque"
	case Bookmark:
		return "bookmark"
	default:
		return "unknown"
	}
}

// Live reports whether the message asserts that its object exists.
func (o Op) Live() bool { return o == Put || o == Opaque }

// Message is one message of the feed: the envelope its headers carry, its place
// in the stream, and the body.
type Message struct {
	Kind Kind
	Key  Key
	// Seq is the stream sequence; zero before it is published. Sequences grow
	// and never repeat, not even over a wiped stream.
	Seq uint64

	Op Op
	// UID is metadata.uid of the object.
	UID string
	// Version is metadata.resourceVersion of the object as published; for a
	// tombstone that of the deletion, or of the list that lacked the object.
	Version uint64
	// Upto is the resourceVersion up to which every event of this slice of the
	// kind had been received and acknowledged when this was sent.
	Upto uint64
	// Epoch is the epoch of the watcher's lease on the kind.
	Epoch uint64
	// Hash is the 64-bit hash of the projected body; zero without a body.
	Hash uint64
	// Projection is the version of the projection that made the body.
	Projection uint32
	// Observed is when the watcher received the event, by its own clock.
	Observed time.Time
	// Committed is when the API server committed the change, as far as the
	// object tells (its newest condition or managedFields time); zero if it
	// does not.
	Committed time.Time
	// Trace is the W3C traceparent of the change; empty when not sampled.
	Trace string

	// Slice is the partition a bookmark speaks for; only with Op Bookmark.
	Slice int
	// Mark is the bookmark's content; nil for every other Op.
	Mark *Mark

	Body []byte
}

// Mark is what a bookmark says about slice i of a kind: the objects whose pk is
// i, and those whose pn is i.
type Mark struct {
	// Counter grows by one with each bookmark of one epoch and slice.
	Counter uint64
	// Absent is set for a kind that the API does not serve.
	Absent bool
	// ByKey sums the live objects whose key falls in the slice.
	ByKey Sums
	// ByNamespace sums the live objects whose namespace falls in the slice.
	ByNamespace Sums
}

// Sums prove that two sides hold the same set. The zero value is the empty set.
type Sums struct {
	// Count is the number of live objects.
	Count uint64
	// Existence is the sum of ExistenceOf over the live objects, modulo 2^64.
	Existence uint64
	// Exact is the sum of ExactOf over the live objects, modulo 2^64.
	Exact uint64
}

// Add counts one live object in.
func (s *Sums) Add(kind Kind, key Key, uid string, version uint64) {
	e := existenceOf(kind, key, uid)
	s.Count++
	s.Existence += e
	s.Exact += exactOf(e, version)
}

// Remove counts one live object out; the inverse of Add.
func (s *Sums) Remove(kind Kind, key Key, uid string, version uint64) {
	e := existenceOf(kind, key, uid)
	s.Count--
	s.Existence -= e
	s.Exact -= exactOf(e, version)
}

// SameObjects reports whether both sides hold the same objects, in whatever
// versions.
func (s Sums) SameObjects(other Sums) bool {
	return s.Count == other.Count && s.Existence == other.Existence
}

// SameVersions reports whether both sides hold the same objects in the same
// versions.
func (s Sums) SameVersions(other Sums) bool { return s == other }

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// existenceOf hashes one object's identity. FNV-1a over kind, key and UID with
// a zero byte between them, then a finalizer: sums of plain FNV values of names
// that differ in their last byte cancel too easily. Frozen: it is on the wire.
func existenceOf(kind Kind, key Key, uid string) uint64 {
	h := uint64(fnvOffset)
	for _, part := range [...]string{string(kind), key.Namespace, key.Name, uid} {
		for i := range len(part) {
			h = (h ^ uint64(part[i])) * fnvPrime
		}
		h *= fnvPrime // the zero byte between parts
	}
	return mix(h)
}

// exactOf folds a version into an identity. Frozen: it is on the wire.
func exactOf(existence, version uint64) uint64 {
	return mix(existence ^ mix(version+0x9e3779b97f4a7c15))
}

// mix is the 64-bit finalizer of MurmurHash3 (public domain): every input bit
// reaches every output bit.
func mix(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return h
}

// HashBody returns the hash that travels as Message.Hash. FNV-1a, 64 bits,
// finalized; never zero. Frozen: it is on the wire.
func HashBody(body []byte) uint64 {
	h := uint64(fnvOffset)
	for _, b := range body {
		h = (h ^ uint64(b)) * fnvPrime
	}
	if h = mix(h); h == 0 {
		return 1
	}
	return h
}
