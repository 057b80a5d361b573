package controller

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

const (
	// maxIntents is how many keys of a partition are compared; those on top are
	// counted. Unit: keys.
	maxIntents = 10000
	// maxShown is how many keys a report names. Unit: keys.
	maxShown = 100
	// maxFields is how many differences a report names of one key.
	maxFields = 20
	// maxReportBytes is how long a report may be; the keys that differ for the
	// shortest time go first. Unit: bytes. Source: half of what a server takes by
	// default.
	maxReportBytes = 512 << 10
)

// ShadowSubject is where members in shadow mode say how far what they would have
// written differs from what the cluster has become.
func ShadowSubject(cluster string) string { return "millrace." + event.Token(cluster) + ".shadow" }

// Difference is one field of which a role would have made something else.
type Difference struct{ Field, Want, Have string }

// shadow is what the keys of a partition would have written. A key whose
// reconcile wants no write any more has come to agree: the cluster became what
// was intended.
type shadow struct {
	mu      sync.Mutex
	running map[event.Key]*intent // of the reconcile under way
	intents map[event.Key]*intent // of the last reconcile that wanted writes
	agreed  uint64                // intents that came true
	dropped uint64
}

// intent is what one reconcile would have written.
type intent struct {
	since  time.Time
	writes []*millracev1.Decision
	effect any // as the role's Compare takes it; nil: the writes' hashes are compared
}

func newShadow() *shadow {
	s := &shadow{}
	s.reset()
	return s
}

func (s *shadow) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running, s.intents = make(map[event.Key]*intent), make(map[event.Key]*intent)
	s.agreed, s.dropped = 0, 0
}

func (s *shadow) of(key event.Key) *intent {
	if s.running[key] == nil {
		s.running[key] = &intent{since: time.Now()}
	}
	return s.running[key]
}

func (s *shadow) intend(key event.Key, d *millracev1.Decision) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.of(key)
	i.writes = append(i.writes, d)
}

func (s *shadow) effect(key event.Key, effect any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of(key).effect = effect
}

// begin forgets what a run has left behind that came to no end.
func (s *shadow) begin(key event.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, key)
}

// failed takes the end of a reconcile that failed: what it held back differs.
func (s *shadow) failed(key event.Key) {
	s.mu.Lock()
	now := s.running[key]
	s.mu.Unlock()
	if now != nil && len(now.writes) > 0 {
		s.settle(key, true)
	}
}

// settle takes the end of a reconcile: it was held back, or had nothing to write.
func (s *shadow) settle(key event.Key, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, before := s.running[key], s.intents[key]
	delete(s.running, key)
	switch {
	case held && now != nil && (before != nil || len(s.intents) < maxIntents):
		if before != nil {
			now.since = before.since // it has differed since then
		}
		s.intents[key] = now
	case held && now != nil:
		s.dropped++
	case !held && before != nil:
		delete(s.intents, key)
		s.agreed++
	}
}

// Intend says, in shadow mode, what would be true of key's outputs after its
// writes; Definition.Compare takes it later.
func (p *Partition) Intend(key event.Key, effect any) { p.shadow.effect(key, effect) }

// shadowReport answers how this member's intentions compare with the cluster;
// nil where another role is asked.
func (c *Controller) shadowReport(data []byte) []byte {
	var request millracev1.ShadowRequest
	if err := proto.Unmarshal(data, &request); err != nil || request.GetRole() != c.def.Role {
		return nil
	}
	report := &millracev1.ShadowReport{Role: c.def.Role, Host: c.def.Host, Mode: c.modes.mode()}
	for part := range c.parts {
		if c.modeOf(part) == ModeShadow {
			report.Mode = ModeShadow // of something
		}
	}
	for _, p := range c.partitions() {
		p.compare(report)
	}
	slices.SortFunc(report.Keys, func(a, b *millracev1.ShadowKey) int {
		return cmp.Compare(b.GetSince().AsDuration(), a.GetSince().AsDuration())
	})
	report.Keys = report.Keys[:min(maxShown, len(report.Keys))]
	for {
		b, err := proto.Marshal(report)
		if err != nil {
			c.log.Error("forming a report", "err", err)
		}
		if len(b) <= maxReportBytes || len(report.GetKeys()) == 0 {
			return b
		}
		report.Keys = report.Keys[:len(report.Keys)/2]
	}
}

// compare adds what p's keys would have written and the cluster has not become.
func (p *Partition) compare(report *millracev1.ShadowReport) {
	p.shadow.mu.Lock()
	report.Agreed += p.shadow.agreed
	report.Dropped += p.shadow.dropped
	open := maps.Clone(p.shadow.intents)
	p.shadow.mu.Unlock()
	for key, i := range open {
		differences := p.differences(key, i)
		if len(differences) == 0 {
			report.Equal++
			continue
		}
		report.Differing++
		k := &millracev1.ShadowKey{Key: Ref{Kind: p.kindOf(key), Key: key}.proto(), Since: durationpb.New(time.Since(i.since))}
		if more := len(differences) - maxFields; more > 0 {
			differences = append(differences[:maxFields:maxFields], Difference{Field: fmt.Sprintf("%d more", more)})
		}
		for _, d := range differences {
			k.Differences = append(k.Differences, &millracev1.FieldDifference{Field: d.Field, Want: cut(d.Want), Have: cut(d.Have)})
		}
		for _, w := range i.writes {
			k.Writes = append(k.Writes, w.GetVerb()+" "+w.GetObject().GetKind()+" "+w.GetObject().GetName())
		}
		report.Keys = append(report.Keys, k)
	}
}

// differences compares an intention with the cache as it stands.
func (p *Partition) differences(key event.Key, i *intent) (out []Difference) {
	if i.effect != nil && p.c.def.Compare != nil {
		return p.c.def.Compare(p, key, i.effect)
	}
	for _, w := range i.writes {
		if d, differs := p.differs(w); differs {
			out = append(out, d)
		}
	}
	return out
}

// differs compares one write by its hash; what travels projected, or was
// patched, differs by that.
func (p *Partition) differs(w *millracev1.Decision) (Difference, bool) {
	o := w.GetObject()
	key := event.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
	from := p.cache
	if p.c.wide.Has(event.Kind(o.GetKind())) {
		from = p.c.wide
	}
	uid, version, exists := from.Lookup(event.Kind(o.GetKind()), key)
	d := Difference{Field: o.GetKind() + " " + key.String(), Want: fmt.Sprintf("%s (hash %x)", w.GetVerb(), w.GetBodyHash()), Have: "nothing"}
	if exists {
		d.Have = fmt.Sprintf("version %d (hash %x)", version, from.Hash(event.Kind(o.GetKind()), key))
	}
	if w.GetVerb() == "delete" {
		return d, exists && uid == o.GetUid()
	}
	return d, !exists || from.Hash(event.Kind(o.GetKind()), key) != w.GetBodyHash()
}
