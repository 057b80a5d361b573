package operator

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/apimachinery/pkg/api/meta"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/process"
)

// Explanation is all that can be learned of one object. What could not be asked
// says why in the field beside it.
type Explanation struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`

	Live        *Live  `json:"live,omitempty"`
	LiveProblem string `json:"liveProblem,omitempty"`
	Bus         *OnBus `json:"bus,omitempty"`
	BusProblem  string `json:"busProblem,omitempty"`
	// Holders are the members that hold the object's partition, one per role.
	Holders []Holder `json:"holders,omitempty"`
	// Decisions are writes of the object, and writes that its own reconciles
	// made, oldest first.
	Decisions   []Decision   `json:"decisions,omitempty"`
	DeadLetters []DeadLetter `json:"deadLetters,omitempty"`
}

// Live is the object as the API server holds it.
type Live struct {
	UID     string     `json:"uid"`
	Version uint64     `json:"version"`
	Created time.Time  `json:"created"`
	Deleted *time.Time `json:"deleted,omitempty"`
	// Manager wrote last, as far as managedFields tell.
	Manager string    `json:"manager,omitempty"`
	Written time.Time `json:"written"`
}

// OnBus is the last message about the object.
type OnBus struct {
	Op       string    `json:"op"`
	UID      string    `json:"uid"`
	Version  uint64    `json:"version"`
	Sequence uint64    `json:"sequence"`
	Epoch    uint64    `json:"epoch"`
	Observed time.Time `json:"observed"`
}

// Holder is what the holder of the object's partition knows.
type Holder struct {
	Role      string     `json:"role"`
	Member    string     `json:"member"`
	Host      string     `json:"host"`
	Partition uint32     `json:"partition"`
	Epoch     uint64     `json:"epoch"`
	Mode      string     `json:"mode,omitempty"`
	Parts     []PartMode `json:"parts,omitempty"`
	Synced    bool       `json:"synced"`
	// FreshSeconds is the age of the kind's last bookmark there.
	FreshSeconds float64 `json:"freshSeconds"`
	// Cached is the object's version in the cache; zero: it is not there.
	Cached uint64     `json:"cached"`
	UID    string     `json:"uid,omitempty"`
	Opaque bool       `json:"opaque,omitempty"`
	Keys   []KeyState `json:"keys,omitempty"`
}

// KeyState is where one key stands.
type KeyState struct {
	Key          string  `json:"key"`
	State        string  `json:"state"`
	SinceSeconds float64 `json:"sinceSeconds"`
	WaitsFor     string  `json:"waitsFor,omitempty"`
	Cause        *Cause  `json:"cause,omitempty"`
	Failures     uint32  `json:"failures,omitempty"`
	LastError    string  `json:"lastError,omitempty"`
	// Notes are what the role knows that no object shows.
	Notes          []string `json:"notes,omitempty"`
	NextTrySeconds *float64 `json:"nextTrySeconds,omitempty"`
	LiveFirst      bool     `json:"liveFirst,omitempty"`
	Unseen         []string `json:"unseen,omitempty"`
}

// Cause is a change that was answered, or waits to be.
type Cause struct {
	Kind      string     `json:"kind"`
	Key       string     `json:"key"`
	Op        string     `json:"op"`
	Version   uint64     `json:"version"`
	Committed *time.Time `json:"committed,omitempty"`
	Observed  *time.Time `json:"observed,omitempty"`
	Received  *time.Time `json:"received,omitempty"`
}

// Decision is one write.
type Decision struct {
	At         time.Time `json:"at"`
	Role       string    `json:"role"`
	Outcome    string    `json:"outcome"` // taken, refused or intended
	Verb       string    `json:"verb"`
	Kind       string    `json:"kind"`
	Object     string    `json:"object"`
	UID        string    `json:"uid,omitempty"`
	Base       uint64    `json:"base,omitempty"`
	Version    uint64    `json:"version,omitempty"`
	Key        string    `json:"key"`
	Rule       string    `json:"rule"`
	Detail     string    `json:"detail,omitempty"`
	Cause      *Cause    `json:"cause,omitempty"` // nil: no event asked for it
	Ages       Ages      `json:"ages"`
	Inputs     []Input   `json:"inputs,omitempty"`
	MoreInputs uint32    `json:"moreInputs,omitempty"`
	Member     string    `json:"member"`
	Host       string    `json:"host"`
	Partition  uint32    `json:"partition"`
	Job        string    `json:"job,omitempty"` // instead of a partition's key
	Epoch      uint64    `json:"epoch"`
	ErrorClass string    `json:"errorClass,omitempty"`
	Error      string    `json:"error,omitempty"`
	BodyBytes  uint32    `json:"bodyBytes,omitempty"`
}

// Ages are how long a change took from hop to hop; negative: not known. The
// first two compare clocks of different machines.
type Ages struct {
	WatchSeconds float64 `json:"watchSeconds"` // committed → seen by the watcher; the former in whole seconds
	BusSeconds   float64 `json:"busSeconds"`   // → received by the replica
	QueueSeconds float64 `json:"queueSeconds"` // → taken in hand
	WriteSeconds float64 `json:"writeSeconds"` // → written
}

// Input is one object that a decision looked at.
type Input struct {
	Kind    string `json:"kind"`
	Key     string `json:"key"`
	Version uint64 `json:"version"`
}

// liveWait bounds a look at the API server. Unit: time. Source: ours; a person
// waits.
const liveWait = 5 * time.Second

func explain(ctx context.Context, s session) error {
	format, last := "", 0
	words, err := flags("explain", s.args, explainFlags(&format, &last), "KIND", "KEY")
	if err != nil {
		return err
	}
	if last < 0 {
		return fmt.Errorf("%w: -n is %d; it must not be negative", errUsage, last)
	}
	api, apiErr := s.api()
	x, err := Explain(ctx, s.bus, kindOf(words[0]), event.ParseKey(words[1]), last)
	if err != nil {
		return err
	}
	x.look(ctx, api, apiErr)
	return s.print(format, x, func(w io.Writer) error { return RenderExplanation(w, x, time.Now()) })
}

func explainFlags(format *string, last *int) func(*flag.FlagSet) {
	return func(fs *flag.FlagSet) {
		outputFlag(fs, format)
		fs.IntVar(last, "n", 5, "")
	}
}

// api connects to the API server, if there is a way.
func (s session) api() (*kube.API, error) {
	var cfg probeConfig
	if err := process.Load(process.Prefix, &cfg, s.known...); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAPI, err)
	}
	api, err := kube.Connect(cfg.Kube, "millrace-operator", slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: MILLRACE_KUBE: %w", errNoAPI, err)
	}
	return api, nil
}

var errNoAPI = errors.New("the API server was not asked")

// Explain asks the bus and the members; last is how many decisions to show.
func Explain(ctx context.Context, b *bus.Bus, kind event.Kind, key event.Key, last int) (*Explanation, error) {
	x := &Explanation{Kind: string(kind), Key: key.String()}
	switch m, err := b.Peek(ctx, kind, key); {
	case errors.Is(err, bus.ErrNone):
		x.BusProblem = "it holds nothing about it"
	case err != nil:
		x.BusProblem = err.Error()
	default:
		x.Bus = &OnBus{Op: m.Op.String(), UID: m.UID, Version: m.Version, Sequence: m.Seq, Epoch: m.Epoch, Observed: m.Observed}
	}
	if err := x.ask(ctx, b, kind, key); err != nil {
		return x, err
	}
	records, err := b.Decisions(ctx, kind, key)
	if err != nil {
		return x, err
	}
	for _, d := range records[max(0, len(records)-last):] {
		x.Decisions = append(x.Decisions, decisionOf(d))
	}
	letters, err := b.DeadLetters(ctx)
	if err != nil {
		return x, fmt.Errorf("reading dead letters: %w", err)
	}
	for _, l := range letters {
		if event.Kind(l.GetKind()) == kind && (event.Key{Namespace: l.GetNamespace(), Name: l.GetName()}) == key {
			x.DeadLetters = append(x.DeadLetters, deadLetter(l))
		}
	}
	return x, nil
}

// ask asks all members; the holders of the object's partition answer.
func (x *Explanation) ask(ctx context.Context, b *bus.Bus, kind event.Kind, key event.Key) error {
	request, err := proto.Marshal(&millracev1.ExplainRequest{
		Object: &millracev1.ObjectRef{Kind: string(kind), Namespace: key.Namespace, Name: key.Name},
	})
	if err != nil {
		return fmt.Errorf("forming a request: %w", err)
	}
	answers, err := b.AskAll(ctx, controller.ExplainSubject(b.Cluster()), request, gatherWait)
	if err != nil && !errors.Is(err, event.ErrNoResponders) {
		return fmt.Errorf("asking members: %w", err)
	}
	for _, data := range answers {
		a := &millracev1.ExplainAnswer{}
		if err := proto.Unmarshal(data, a); err != nil {
			return fmt.Errorf("reading a member's answer: %w", err)
		}
		x.Holders = append(x.Holders, holderOf(a))
	}
	return nil
}

// look adds the object as the API server holds it.
func (x *Explanation) look(ctx context.Context, api *kube.API, err error) {
	var found kube.Object
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, liveWait)
		defer cancel()
		found, err = api.GetMetadata(ctx, event.Kind(x.Kind), event.ParseKey(x.Key))
	}
	if errors.Is(err, kube.ErrNotFound) {
		x.LiveProblem = "it does not exist"
		return
	}
	if err != nil {
		x.LiveProblem = err.Error()
		return
	}
	m, err := meta.Accessor(found.Raw)
	if err != nil {
		x.LiveProblem = err.Error()
		return
	}
	x.Live = &Live{UID: found.UID, Version: found.Version, Created: m.GetCreationTimestamp().Time}
	if at := m.GetDeletionTimestamp(); at != nil {
		x.Live.Deleted = &at.Time
	}
	for _, f := range m.GetManagedFields() {
		if f.Time != nil && !f.Time.Time.Before(x.Live.Written) {
			x.Live.Manager, x.Live.Written = f.Manager, f.Time.Time
		}
	}
}

func keyOf(r *millracev1.ObjectRef) string {
	return event.Key{Namespace: r.GetNamespace(), Name: r.GetName()}.String()
}

func holderOf(a *millracev1.ExplainAnswer) Holder {
	h := Holder{
		Role: a.GetMember().GetRole(), Member: a.GetMember().GetId(), Host: a.GetMember().GetHost(),
		Partition: a.GetPartition(), Epoch: a.GetEpoch(), Mode: a.GetMode(), Parts: partModes(a.GetParts()), Synced: a.GetSynced(),
		FreshSeconds: a.GetKind().GetAge().AsDuration().Seconds(),
		Cached:       a.GetCached().GetVersion(), UID: a.GetCached().GetUid(), Opaque: a.GetOpaque(),
	}
	for _, k := range a.GetKeys() {
		s := KeyState{
			Key: k.GetKey().GetKind() + " " + keyOf(k.GetKey()), State: k.GetState(), SinceSeconds: k.GetSince().AsDuration().Seconds(),
			WaitsFor: k.GetWaitsFor(), Cause: causeOf(k.GetCause()), Failures: k.GetFailures(), LastError: k.GetLastError(),
			LiveFirst: k.GetLiveFirst(), Notes: k.GetNotes(),
		}
		if k.GetNextTry() != nil {
			next := k.GetNextTry().AsDuration().Seconds()
			s.NextTrySeconds = &next
		}
		for _, w := range k.GetUnseen() {
			s.Unseen = append(s.Unseen, w.GetKind()+" "+keyOf(w))
		}
		h.Keys = append(h.Keys, s)
	}
	return h
}

func causeOf(c *millracev1.Cause) *Cause {
	if c == nil {
		return nil
	}
	at := func(t *timestamppb.Timestamp) *time.Time {
		if t == nil {
			return nil
		}
		u := t.AsTime()
		return &u
	}
	return &Cause{
		Kind: c.GetObject().GetKind(), Key: keyOf(c.GetObject()), Op: c.GetOp(), Version: c.GetObject().GetVersion(),
		Committed: at(c.GetCommitted()), Observed: at(c.GetObserved()), Received: at(c.GetReceived()),
	}
}

func decisionOf(d *millracev1.Decision) Decision {
	out := Decision{
		At: d.GetAt().AsTime(), Role: d.GetRole(), Outcome: outcomes[d.GetOutcome()], Verb: d.GetVerb(),
		Kind: d.GetObject().GetKind(), Object: keyOf(d.GetObject()), UID: d.GetObject().GetUid(),
		Base: d.GetBase(), Version: d.GetObject().GetVersion(), Key: d.GetKey().GetKind() + " " + keyOf(d.GetKey()),
		Rule: d.GetRule(), Detail: d.GetDetail(), Cause: causeOf(d.GetCause()), MoreInputs: d.GetMoreInputs(),
		Member: d.GetMember(), Host: d.GetHost(), Partition: d.GetPartition(), Job: d.GetJob(), Epoch: d.GetEpoch(),
		ErrorClass: d.GetErrorClass(), Error: d.GetError(), BodyBytes: d.GetBodyBytes(), Ages: agesOf(d),
	}
	for _, in := range d.GetInputs() {
		out.Inputs = append(out.Inputs, Input{in.GetKind(), keyOf(in), in.GetVersion()})
	}
	return out
}

var outcomes = map[millracev1.Outcome]string{
	millracev1.Outcome_OUTCOME_TAKEN: "taken", millracev1.Outcome_OUTCOME_REFUSED: "refused", millracev1.Outcome_OUTCOME_INTENDED: "intended",
}

// agesOf measures the hops whose both ends are known.
func agesOf(d *millracev1.Decision) Ages {
	hop := func(from, to *timestamppb.Timestamp) float64 {
		if from == nil || to == nil {
			return -1
		}
		return max(0, to.AsTime().Sub(from.AsTime()).Seconds())
	}
	c := d.GetCause()
	return Ages{
		WatchSeconds: hop(c.GetCommitted(), c.GetObserved()), BusSeconds: hop(c.GetObserved(), c.GetReceived()),
		QueueSeconds: hop(c.GetReceived(), d.GetTaken()), WriteSeconds: hop(d.GetTaken(), d.GetAt()),
	}
}
