package beat

import (
	"slices"
	"strings"
	"time"
)

const (
	// digestLife is how long a digest may be judged by. Unit: time. Source:
	// architecture section 7; three times the period.
	digestLife = 3 * time.Second
	// maxDelay is how much longer than the quickest of the last ones a digest may
	// have been on its way. Unit: time. Source: a quiet network needs
	// milliseconds; a digest of a frozen process is late by the freeze.
	maxDelay = time.Second
	// catchingUp is how much quicker than all before it a digest may be without
	// putting them in doubt: in a burst of waiting ones each is quicker by the
	// period. Unit: time.
	catchingUp = 500 * time.Millisecond
	// enough digests in a row have to agree with the quickest before any is judged
	// by. Unit: digests. Source: one can agree by chance, when a reader that slept
	// finds one that was held up before it was sent; BenchmarkWorlds found that.
	enough = 2
	// remembered is how many delays are compared. Unit: digests. Two clocks drift
	// apart, and one may be set, so a baseline is good for half a minute.
	remembered = 32
)

// Reason is why nothing may be judged; empty: it may.
type Reason string

// The reasons.
const (
	NoDigest      Reason = "no digest yet"
	Late          Reason = "the last digest is more than 3s old"
	Few           Reason = "too few digests of this watcher have come"
	Delayed       Reason = "digests are late on their way"
	LowerEpoch    Reason = "a digest of an earlier watcher came"
	Contradicted  Reason = "the API server shows a beat that the digest does not"
	ClockWentBack Reason = "the own clock went back"
	Unknown       Reason = "the digest does not name this node"
)

// Reasons are all of them.
var Reasons = []Reason{NoDigest, Late, Few, Delayed, LowerEpoch, Contradicted, ClockWentBack, Unknown}

// Silence judges by its digests how long the nodes of one partition have been
// silent. A broken pipeline never looks like dead nodes: whatever is wrong with
// the digests suspends judging and says why.
//
// now is always the same clock, which must count the suspension of the machine.
type Silence struct {
	digest   Digest
	received time.Duration
	// doubt is why the last digest does not count; empty: it does.
	doubt Reason
	// delays are those of the last digests of this epoch, against clocks that
	// share no zero.
	delays []time.Duration
	next   int // of delays, to be replaced
	agreed int // digests in a row that were on their way for as long as the quickest
	// contradicted holds, by node, what the digest showed when a live read showed
	// something else.
	contradicted map[string]Beat

	without rule
}

// NewSilence returns a judge who has seen no digest.
func NewSilence() *Silence {
	return &Silence{doubt: NoDigest, contradicted: make(map[string]Beat)}
}

// Digest takes a digest that came at now. It reports whether it replaced the last
// one.
func (s *Silence) Digest(d Digest, now time.Duration) bool {
	switch {
	case d.Epoch < s.digest.Epoch && s.without.keeps(ruleEpoch):
		s.doubt = LowerEpoch
		return false
	case d.Epoch == s.digest.Epoch && d.Counter <= s.digest.Counter && s.without.keeps(ruleRepeated):
		return false
	case d.Epoch != s.digest.Epoch:
		s.delays, s.next = s.delays[:0], 0
	}
	s.doubt = s.judge(d, now)
	s.digest, s.received = d, now
	for node, shown := range s.contradicted {
		if b, known := s.beat(node); known != (shown.UID != "") || !b.Same(shown) {
			delete(s.contradicted, node)
		}
	}
	return true
}

// judge compares how long a digest was on its way with those before it, and
// remembers it.
func (s *Silence) judge(d Digest, now time.Duration) Reason {
	delay := now - d.At
	first := len(s.delays) == 0
	quickest := delay
	if !first {
		quickest = slices.Min(s.delays)
	}
	if len(s.delays) < remembered {
		s.delays = append(s.delays, delay)
	} else {
		s.delays[s.next] = delay
		s.next = (s.next + 1) % remembered
	}
	switch {
	case first:
		s.agreed = 0
	case quickest-delay > catchingUp && s.without.keeps(ruleDelayed):
		s.agreed = 0 // all before it were late
		return Delayed
	case delay-quickest > maxDelay && s.without.keeps(ruleDelayed):
		return Delayed
	case now-s.received >= catchingUp:
		s.agreed++ // those that come all at once have waited together
	}
	if s.agreed < enough && s.without.keeps(ruleSecond) {
		return Few
	}
	return ""
}

func (s *Silence) beat(node string) (Beat, bool) {
	beats := s.digest.Beats
	i, found := slices.BinarySearchFunc(beats, node, func(b Beat, node string) int { return strings.Compare(b.Node, node) })
	if !found {
		return Beat{}, false
	}
	return beats[i], true
}

// Suspended returns why no node of the partition may be judged at now.
func (s *Silence) Suspended(now time.Duration) Reason {
	switch {
	case s.doubt != "":
		return s.doubt
	case now < s.received:
		return ClockWentBack
	case now-s.received > digestLife && s.without.keeps(ruleLate):
		return Late
	case len(s.contradicted) > 0 && s.without.keeps(ruleContradicted):
		return Contradicted
	}
	return ""
}

// Verdict is what can be said of one node at one moment.
type Verdict struct {
	// Beat is what the digest shows; the zero value where Why is Unknown.
	Beat
	// Silence is how long the node has not beaten: at most so long as it truly
	// has, but for the time since the digest came.
	Silence time.Duration
	// Why says that Silence must not be acted on, and why.
	Why Reason
}

// Of returns the silence of a node. An empty uid stands for any; another one than
// the digest's is Unknown: the digest speaks of an earlier or later node.
func (s *Silence) Of(node, uid string, now time.Duration) Verdict {
	b, known := s.beat(node)
	why := s.Suspended(now)
	if why == "" && (!known || uid != "" && uid != b.UID) {
		why = Unknown
	}
	if !known {
		return Verdict{Why: why}
	}
	return Verdict{Beat: b, Silence: b.Age + max(0, now-s.received), Why: why}
}

// Deadline returns when, by the clock of now, the node will have been silent for
// grace if no further digest comes; false for a node that the digest does not
// name. A suspended partition has deadlines too: what is due then is to ask Of.
func (s *Silence) Deadline(node string, grace time.Duration) (time.Duration, bool) {
	b, known := s.beat(node)
	if !known {
		return 0, false
	}
	return s.received + grace - b.Age, true
}

// Next returns the earliest deadline after now; false if none lies ahead. grace
// says how long each node may be silent.
func (s *Silence) Next(grace func(Beat) time.Duration, now time.Duration) (time.Duration, bool) {
	var next time.Duration
	found := false
	for i := range s.digest.Beats {
		b := &s.digest.Beats[i]
		at := s.received + grace(*b) - b.Age
		if at > now && (!found || at < next) {
			next, found = at, true
		}
	}
	return next, found
}

// All returns what the last digest that counted told, by name, ascending. The
// caller must not change it.
func (s *Silence) All() []Beat { return s.digest.Beats }

// Live compares what a node was judged by with a live read of it and its Lease,
// and reports whether they agree. If not, the digest is behind the API server, no
// node of the partition is judged by it, and that stays so until the digest shows
// another beat of this node or a later call agrees. Of both, Node, UID, Renewed
// and Heartbeat count; the UID of a node that is gone is empty.
//
// Where the digest has shown something else since the node was judged, there is
// nothing to compare: false, and nothing is suspended ⚠. A node that was deleted
// meanwhile would contradict for ever, for no digest will name it again.
func (s *Silence) Live(judged, live Beat) bool {
	shown, known := s.beat(judged.Node)
	switch {
	case !known || !shown.Same(judged):
		return false
	case shown.Same(live):
		delete(s.contradicted, judged.Node)
		return true
	}
	s.contradicted[judged.Node] = shown
	return false
}
