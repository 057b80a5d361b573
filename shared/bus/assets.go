package bus

import (
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Bucket names one key-value bucket of a cluster.
type Bucket string

const (
	// Own holds member keys and leases.
	Own Bucket = "own"
	// Rates holds token buckets.
	Rates Bucket = "rates"
	// Facts holds the few facts that no object holds.
	Facts Bucket = "facts"
)

// Buckets lists them all.
var Buckets = []Bucket{Own, Rates, Facts}

// Names in the metadata of every stream.
const (
	metaWire       = "millrace.wire"
	metaPartitions = "millrace.partitions"
)

const (
	mib = 1 << 20

	// maxMessageBytes is the largest message we publish. Unit: bytes. Source: an
	// etcd request is at most 1.5 MiB, and a projected object is smaller than
	// the object; the server warns above 8 MiB.
	maxMessageBytes = 4 * mib
	// maxConsumers bounds the consumers of one stream. Unit: consumers. Source:
	// 2.15 takes -1 for 1 000; ten roles of 256 durables, their feeds and the
	// 15 s that leftovers live must fit.
	maxConsumers = 16384
	// duplicateWindow is as short as the server allows to keep its map small:
	// we publish by expected sequence, not by message id. Unit: time.
	duplicateWindow = time.Second
	// markerLife is how long a bucket remembers that a key expired. Unit: time.
	// Source: far longer than a member that renews is away from its connection.
	markerLife = time.Minute
	// deletedLife is how long a bucket remembers that a key was deleted. Unit:
	// time.
	deletedLife = time.Hour
)

func (b *Bus) eventStream() string           { return "K8S_" + b.cfg.Cluster }
func (b *Bus) digestStream() string          { return "BEATS_" + b.cfg.Cluster }
func (b *Bus) deadLetterStream() string      { return "DLQ_" + b.cfg.Cluster }
func (b *Bus) decisionStream() string        { return "DECISIONS_" + b.cfg.Cluster }
func (b *Bus) bucketName(k Bucket) string    { return string(k) + "_" + b.cfg.Cluster }
func (b *Bus) bucketStream(k Bucket) string  { return "KV_" + b.bucketName(k) }
func (b *Bus) bucketSubject(k Bucket) string { return "$KV." + b.bucketName(k) + "." }

// assets declares every stream of a cluster, those behind buckets included. This
// is the only place: creating, checking, mending and deleting all read it.
// Replicas and FirstSeq are filled in when a stream is made.
func (b *Bus) assets() []jetstream.StreamConfig {
	declared := []jetstream.StreamConfig{
		b.lastValues(b.eventStream(), b.root+".>", b.cfg.MaxBytes, "the last value of every object"),
		b.lastValues(b.digestStream(), b.digestRoot()+".>", 256*mib, "the last heartbeat digest of every partition"),
		b.lastValues(b.deadLetterStream(), b.deadLetterRoot()+".>", 64*mib, "keys that cannot be processed, and why"),
		{
			Name:        b.decisionStream(),
			Description: "millrace: one record per write",
			Subjects:    []string{b.decisionRoot() + ".>"},
			Discard:     jetstream.DiscardOld,
			MaxAge:      b.cfg.DecisionsMaxAge,
			MaxBytes:    b.cfg.DecisionsMaxBytes,
			MaxMsgSize:  mib,

			MaxMsgsPerSubject: b.cfg.DecisionsPerObject,
		},
	}
	for _, k := range Buckets {
		declared = append(declared, b.bucketConfig(k))
	}
	for i := range declared {
		c := &declared[i]
		c.Retention = jetstream.LimitsPolicy
		c.MaxMsgs = -1
		c.MaxConsumers = maxConsumers
		c.Duplicates = duplicateWindow
		c.AllowDirect = true
		if b.cfg.Storage == "memory" {
			c.Storage = jetstream.MemoryStorage
		} else {
			// Not compressed: the server compresses a block of 8 MiB when it is
			// full, and holds it locked meanwhile, which nobody can read past.
			// Seen as 60 to 200 ms in which nothing is delivered.
			c.Storage, c.Compression = jetstream.FileStorage, jetstream.NoCompression
		}
		c.Metadata = map[string]string{
			metaWire:       strconv.Itoa(WireVersion),
			metaPartitions: strconv.Itoa(b.cfg.Partitions),
		}
		if c.MaxMsgsPerSubject == 0 {
			c.MaxMsgsPerSubject = -1
		}
	}
	return declared
}

// lastValues declares a stream that keeps one message per subject. DiscardNew
// without its per-subject flag: a newer value still replaces the older one, and
// a full stream refuses new keys loudly where DiscardOld would drop keys in
// silence. No delete markers: a tombstone that expires leaves nothing.
func (b *Bus) lastValues(name, subject string, maxBytes int64, what string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              name,
		Description:       "millrace: " + what,
		Subjects:          []string{subject},
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
		MaxBytes:          maxBytes,
		MaxMsgSize:        maxMessageBytes,
		AllowMsgTTL:       true,
	}
}

// bucketConfig declares a bucket as the stream that the library would make for
// it, so that every tool for buckets works on it, and so that it can have
// FirstSeq.
func (b *Bus) bucketConfig(k Bucket) jetstream.StreamConfig {
	c := b.lastValues(b.bucketStream(k), b.bucketSubject(k)+">", 64*mib, "bucket "+string(k))
	c.MaxMsgSize = mib
	c.AllowRollup = true // the server wants it where keys leave markers
	c.DenyDelete = true
	c.SubjectDeleteMarkerTTL = markerLife
	return c
}
