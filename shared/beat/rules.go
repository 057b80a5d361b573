package beat

// rule is a set of rules of Ages and Silence that are taken out; empty outside
// tests. Each closes a concrete failing interleaving, and TestRules, or for three
// of them a test in beat_test.go, shows that what is promised fails without it.
type rule uint32

const (
	// ruleProof: time passes only up to the last proof that the watch lives, so
	// that an API server that hangs ages nobody.
	ruleProof rule = 1 << iota
	// ruleMaxTick: one tick adds at most 2 s, so that a frozen watcher that thaws
	// ages nobody before it has read what was sent meanwhile.
	ruleMaxTick
	// ruleNoDigest: without a newer proof, no more than 2 s old, there is no digest,
	// so that its reader does not go on adding its own time to what nobody watches.
	ruleNoDigest
	// ruleFirstSight: a UID starts at age 0, however old its times are.
	ruleFirstSight
	// ruleNewUID: a node made anew starts at age 0.
	ruleNewUID
	// ruleAnyChange: any change is a beat, that of a clock set back too.
	ruleAnyChange
	// ruleHeartbeat: a node that renews no Lease beats by its own status.
	ruleHeartbeat
	// ruleInherit: who takes over starts from the ages in the last digests, so
	// that hand-overs do not hide a silence for ever.
	ruleInherit
	// ruleMissed: what changed since the last digest of the predecessor was a
	// beat that nobody heard.
	ruleMissed
	// ruleNextTick: a beat's age is 0 at the next tick, not at the last one, which
	// may lie a proof behind it.
	ruleNextTick
	// ruleLate: a digest is good for 3 s.
	ruleLate
	// ruleEpoch: a digest of a lower epoch is a predecessor's, and old.
	ruleEpoch
	// ruleRepeated: a digest that comes again, as the last value does after every
	// gap, is no fresh one.
	ruleRepeated
	// ruleDelayed: a digest that was longer on its way than others is old by that
	// much: its watcher was frozen before it left, or its reader before it came.
	ruleDelayed
	// ruleSecond: of the first digest of an epoch nobody can tell how long it was
	// on its way, until others have taken as long.
	ruleSecond
	// ruleContradicted: a digest that a live read contradicts is stale, for all of
	// its nodes.
	ruleContradicted
)

func (w rule) keeps(r rule) bool { return w&r == 0 }
