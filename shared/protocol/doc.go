// Package protocol holds the rules by which state travels from the API server's
// watch to a controller's cache, and by which members share partitions, as pure
// state machines: what they are told goes in as method calls, what must be done
// comes out as values. They read no clock, start no goroutine and do no I/O, so
// that an explorer can visit every interleaving of them with crashes, freezes,
// wipes and revivals; the real watcher, cache and lease run this very code.
//
// A machine is not safe for concurrent use: each has one goroutine that owns it.
package protocol

// rule names a rule that closes a concrete failing interleaving. The explorer
// takes one out at a time and must then find the failure; nothing else may.
type rule uint32

const (
	// ruleCAS: every publication names the last sequence of its subject.
	ruleCAS rule = 1 << iota
	// ruleStepDown: a message of a higher epoch ends this publisher.
	ruleStepDown
	// ruleNeverOlder: after a refusal the current object is published, never
	// the buffer that was refused, and never an older version than stored.
	ruleNeverOlder
	// ruleStartDiff: a new publisher compares the stream with a consistent list.
	ruleStartDiff
	// ruleCompare: after a reconnect the stream is compared with the records.
	ruleCompare
	// ruleFollow: the owner corrects messages that are not of its epoch.
	ruleFollow
	// ruleQuietSums: sums are taken while nothing of the slice is outstanding.
	ruleQuietSums
	// ruleSums: a replay has synced only at a bookmark whose sums equal those
	// of what it delivered.
	ruleSums
	// ruleExact: of these sums the exact one has to match, not only that of
	// existence.
	ruleExact
	// ruleInStream: bookmarks travel in the stream they speak of.
	ruleInStream
	// ruleSweep: what a synced replay did not deliver is a deletion.
	ruleSweep
	// ruleReplaced: a new UID under a key is a deletion and a creation.
	ruleReplaced
	// ruleProjection: bookmarks of an older projection do not sync a replay.
	ruleProjection
	// ruleFirstSeq: sequences and epochs never repeat, not over a wipe.
	ruleFirstSeq
	// ruleNoBuffer: what was under way to a server that died is not sent again by
	// the client's library: a rollback does give sequences again.
	ruleNoBuffer
	// ruleEvictFirst: a dead member's key goes by CAS before its leases do.
	ruleEvictFirst
	// ruleConnectedTime: only my own connected time counts against another.
	ruleConnectedTime
	// ruleLiveFirst: the first write of a key after a claim is decided on a
	// live read.
	ruleLiveFirst
	// ruleLiveOnConflict: a conflict is answered by deciding on a live read.
	ruleLiveOnConflict
	// ruleGate: no key is decided before the caches it reads have synced.
	ruleGate
	// rulePreconditions: every write names the UID and version it was decided
	// on.
	rulePreconditions
	// ruleNames: what two owners could both create has a deterministic name.
	ruleNames
	// ruleAsk: a cache that goes on contradicting its bookmarks is replayed, and
	// the watcher asked for a comparison.
	ruleAsk
)

// without is the set of rules taken out; empty outside the explorer.
type without rule

func (w without) keeps(r rule) bool { return rule(w)&r == 0 }
