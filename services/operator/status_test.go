package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/lease"
	"github.com/millrace-io/millrace/shared/partition"
)

// cluster is the one of the test servers.
var cluster = bustest.ConfigFor("").Cluster

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func member(role, host string, units ...*millracev1.PartitionStatus) *millracev1.MemberStatus {
	return &millracev1.MemberStatus{
		Member:        &millracev1.Member{Id: host, Role: role, Host: host, Started: timestamppb.New(now.Add(-time.Minute))},
		Partitions:    units,
		ResidentBytes: 50 << 20,
	}
}

func unit(name string, objects uint64, oldest time.Duration) *millracev1.PartitionStatus {
	return &millracev1.PartitionStatus{Unit: name, Synced: true, Objects: objects, Oldest: durationpb.New(oldest)}
}

func TestStatusAddsUpWhatMembersSay(t *testing.T) {
	s := Status{Partitions: 4}
	a := member("endpoints", "a", unit("0", 10, time.Second), unit("3", 50, 0))
	b := member("endpoints", "b", unit("1", 30, 3*time.Second), unit("2", 20, 0))
	a.Kinds = []*millracev1.KindStatus{{Kind: "pods", Synced: true, Age: durationpb.New(time.Second), Upto: 7, Objects: 60}}
	b.Kinds = []*millracev1.KindStatus{{Kind: "pods", Synced: false, Age: durationpb.New(2 * time.Second), Upto: 5, Objects: 50, Problem: "late"}}
	s.add([]*millracev1.MemberStatus{b, member("watcher", "w", unit("pods", 110, 0)), a}, now)

	if len(s.Roles) != 2 || s.Roles[0].Role != "endpoints" || s.Roles[1].Role != "watcher" {
		t.Fatalf("roles are %+v, want endpoints and watcher", s.Roles)
	}
	got := s.Roles[0]
	if got.Held != 4 || got.Units != 4 || got.OldestSeconds != 3 || len(got.Members) != 2 || got.Members[0].Host != "a" {
		t.Errorf("role is %+v, want 4 of 4 held by a and b, oldest 3 s", got)
	}
	var heavy []string
	for _, u := range got.Heaviest {
		heavy = append(heavy, u.Unit)
	}
	if diff := cmp.Diff([]string{"3", "1", "2"}, heavy); diff != "" {
		t.Errorf("heaviest partitions (-want +got):\n%s", diff)
	}
	want := []KindStatus{{Kind: "pods", Role: "endpoints", AgeSeconds: 2, Upto: 5, Objects: 110, Problem: "late"}}
	if diff := cmp.Diff(want, s.Kinds); diff != "" {
		t.Errorf("of each kind the worst counts (-want +got):\n%s", diff)
	}
	if s.Roles[1].Units != 0 {
		t.Error("the number of the watcher's units is not the number of partitions")
	}
}

func TestStatusShowsSharedLimits(t *testing.T) {
	a, b := member("endpoints", "a"), member("endpoints", "b")
	a.Rates = []*millracev1.RateStatus{{Scope: "write", Rate: 20, Burst: 30, Tokens: 7, Spent: 100, Taker: "b", Waiting: 2}}
	b.Rates = []*millracev1.RateStatus{{Scope: "write", Rate: 20, Burst: 30, Tokens: 4, Spent: 103, Taker: "a", Waiting: 1, Problem: "NATS is away"}}
	var s Status
	s.add([]*millracev1.MemberStatus{a, b, member("watcher", "w")}, now)
	want := []RateStatus{{Scope: "write", PerSecond: 20, Burst: 30, Tokens: 4, Spent: 103, Taker: "a", Waiting: 3, Problem: "NATS is away"}}
	if diff := cmp.Diff(want, s.Roles[0].Rates); diff != "" {
		t.Errorf("limits (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	if err := Render(&out, s); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "LAST TAKER") || strings.Count(out.String(), "LAST TAKER") != 1 || !strings.Contains(out.String(), "103") {
		t.Errorf("the table is\n%s", out.String())
	}
}

func TestStatusShowsJobs(t *testing.T) {
	a, b := member("podevictor", "a"), member("podevictor", "b")
	b.Jobs = []*millracev1.JobStatus{{Name: "terminated", Epoch: 7, Part: "garbage-collection", Mode: "shadow", Objects: 150_000, Passes: 12, LastError: "no right"}}
	var s Status
	s.add([]*millracev1.MemberStatus{a, b}, now)
	want := []JobStatus{{Job: "terminated", Holder: "b", Host: "b", Epoch: 7, Part: "garbage-collection", Mode: "shadow", Objects: 150_000, Passes: 12, LastError: "no right"}}
	if diff := cmp.Diff(want, s.Roles[0].Jobs); diff != "" {
		t.Errorf("jobs (-want +got):\n%s", diff)
	}
	var out bytes.Buffer
	if err := Render(&out, s); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`terminated +podevictor +b +shadow +150000 +12 +no right`).MatchString(out.String()) {
		t.Errorf("the table is\n%s", out.String())
	}
}

func TestStatusHasALineOnHeartbeats(t *testing.T) {
	w := member("watcher", "w", unit("nodes", 3, 0))
	w.Heartbeats = &millracev1.HeartbeatStatus{
		Nodes: 65000, Oldest: durationpb.New(9800 * time.Millisecond), DigestBytes: 150000, Problem: "no digest for 4s",
	}
	s := Status{}
	s.add([]*millracev1.MemberStatus{member("watcher", "v"), w}, now)
	var out bytes.Buffer
	if err := Render(&out, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"65000 nodes", "9.8s", "150000 bytes", "no digest for 4s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the status does not say %q:\n%s", want, out.String())
		}
	}
}

func TestRenderNamesWhatIsMissing(t *testing.T) {
	s := Status{Cluster: "default", Partitions: 4, Bus: "ok"}
	m := member("endpoints", "a", unit("0", 10, 0))
	m.NotReady = []string{"bus: NATS is away"}
	s.add([]*millracev1.MemberStatus{m}, now)
	s.Roles[0].Backlog = -1
	s.DeadLetters = []DeadLetter{{Role: "endpoints", Kind: "services", Key: "shop/web", Reason: "too large", At: now}}
	var out bytes.Buffer
	if err := Render(&out, s); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"no: bus: NATS is away", "1/4", "?", "shop/web", "too large", "50 MiB"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, out.String())
		}
	}
}

// guardedServer has one user who may do everything and an operator.
func guardedServer(t *testing.T) *bustest.Server {
	t.Helper()
	p, control := bus.OperatorPermissions(cluster), bus.ControlPermissions(cluster)
	return bustest.Start(t, bustest.Configure(func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "all", Password: "all"},
			{Username: "operator", Password: "operator", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: p.Publish},
				Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
			}},
			{Username: "control", Password: "control", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: control.Publish},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX_control.>"}},
			}},
			{Username: "command", Password: "command", Permissions: &server.Permissions{ // as a command connects
				Publish:   &server.SubjectPermission{Allow: control.Publish},
				Subscribe: &server.SubjectPermission{Allow: control.Subscribe},
			}},
		}
	}))
}

// as connects as a user of the server.
func as(t *testing.T, s *bustest.Server, user string) *bus.Bus {
	t.Helper()
	cfg := s.Config()
	cfg.URL = strings.Replace(cfg.URL, "nats://", "nats://"+user+":"+user+"@", 1)
	return bustest.Connect(t, cfg, user)
}

// explainable lets there be something to say about the pod shop/web-0.
func explainable(ctx context.Context, t *testing.T, b *bus.Bus) {
	t.Helper()
	sent := make(chan error, 2)
	done := func(_ uint64, err error) { sent <- err }
	key := event.Key{Namespace: "shop", Name: "web-0"}
	b.Publish(bus.Publication{
		Message: event.Message{Kind: "pods", Key: key, Op: event.Put, UID: "u", Version: 7, Body: []byte("x")},
		PK:      partition.OfKey(key, b.Partitions()), PN: partition.OfNamespace(key, b.Partitions()),
	}, done)
	pod := &millracev1.ObjectRef{Kind: "pods", Namespace: "shop", Name: "web-0"}
	b.RecordDecision(&millracev1.Decision{Role: "podevictor", Key: pod, Object: pod}, done)
	for range 2 {
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	answer, err := proto.Marshal(&millracev1.ExplainAnswer{Member: &millracev1.Member{Id: "m"}, Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	stop, err := b.Answer(controller.ExplainSubject(cluster), func([]byte) []byte { return answer })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if _, err := b.Ask(ctx, controller.ExplainSubject(cluster), nil); err != nil {
		t.Fatal(err)
	}
}

// answeredFor fails unless somebody besides the members is heard.
func answeredFor(ctx context.Context, by, all *bus.Bus, subject string) error {
	stop, err := by.Answer(subject, func([]byte) []byte { return []byte("lies") })
	if err != nil {
		return err
	}
	defer stop()
	answers, _ := all.AskAll(ctx, subject, nil, time.Second) // nobody is an answer too
	for _, a := range answers {
		if string(a) == "lies" {
			return nil
		}
	}
	return errors.New("only members were heard")
}

func TestTheOperatorReadsStatusAndNothingElse(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := guardedServer(t)
	all, operator := as(t, s, "all"), as(t, s, "operator")
	if err := all.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	durables := []bus.Durable{{Role: "endpoints", By: bus.ByNamespace, Kinds: []event.Kind{"pods"}}}
	if err := all.EnsureDurables(ctx, durables); err != nil {
		t.Fatal(err)
	}
	letter := &millracev1.DeadLetter{Role: "endpoints", Kind: "services", Namespace: "shop", Name: "web", Reason: "too large"}
	if err := all.DeadLetter(ctx, letter); err != nil {
		t.Fatal(err)
	}
	answer, err := proto.Marshal(member("endpoints", "a", unit("0", 1, 0)))
	if err != nil {
		t.Fatal(err)
	}
	stop, err := all.Answer(lease.StatusSubject(cluster), func([]byte) []byte { return answer })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	t.Run("status is complete", func(t *testing.T) {
		got, err := Gather(ctx, operator)
		if err != nil {
			t.Fatal(err)
		}
		if got.Bus != "ok" || len(got.Roles) != 1 || got.Roles[0].Backlog != 0 || len(got.DeadLetters) != 1 {
			text, _ := json.Marshal(got)
			t.Errorf("status is %s", text)
		}
	})

	explainable(ctx, t, all)
	t.Run("explain is complete", func(t *testing.T) {
		got, err := Explain(ctx, operator, "pods", event.Key{Namespace: "shop", Name: "web-0"}, 5)
		if err != nil {
			t.Fatal(err)
		}
		if got.Bus == nil || got.Bus.Version != 7 || len(got.Decisions) != 1 || len(got.Holders) != 1 || len(got.DeadLetters) != 0 {
			text, _ := json.Marshal(got)
			t.Errorf("explanation is %s", text)
		}
	})

	forbidden := map[string]func(ctx context.Context) error{
		"creating streams": operator.Ensure,
		"resetting":        operator.Reset,
		"moving a durable": func(ctx context.Context) error { return operator.MoveDurable(ctx, "endpoints", 0, 1) },
		"creating durables": func(ctx context.Context) error {
			return operator.EnsureDurables(ctx, []bus.Durable{{Role: "mine", By: bus.ByKey, Kinds: []event.Kind{"pods"}}})
		},
		"writing a lease": func(ctx context.Context) error {
			_, err := operator.KV(bus.Own).Put(ctx, "endpoints.p.0", []byte("mine"), 0, 0)
			return err
		},
		"writing a dead letter": func(ctx context.Context) error { return operator.DeadLetter(ctx, letter) },
		"reading objects": func(ctx context.Context) error {
			return operator.Snapshot(ctx, "pods", func(event.Message) {})
		},
		"reading objects in a row": func(ctx context.Context) error {
			_, err := operator.Last(ctx, "pods", event.Key{Namespace: "shop", Name: "web-0"})
			return err
		},
		"writing a record": func(ctx context.Context) error {
			failed := make(chan error, 1)
			operator.RecordDecision(&millracev1.Decision{Role: "mine"}, func(_ uint64, err error) { failed <- err })
			return <-failed
		},
		"answering for a member": func(ctx context.Context) error {
			return answeredFor(ctx, operator, all, controller.ExplainSubject(cluster))
		},
		"answering what is pending": func(ctx context.Context) error {
			return answeredFor(ctx, operator, all, controller.PendingSubject(cluster))
		},
		"setting a mode": func(ctx context.Context) error { return SetMode(ctx, operator, "endpoints", "off") },
		"publishing an object": func(ctx context.Context) error {
			failed := make(chan error, 1)
			m := event.Message{Kind: "pods", Key: event.Key{Namespace: "shop", Name: "web-0"}, Op: event.Put, UID: "u", Version: 1, Body: []byte("x")}
			operator.Publish(bus.Publication{Message: m}, func(_ uint64, err error) { failed <- err })
			return <-failed
		},
	}
	// What exists already would not be created: take one stream away, so that
	// Ensure has something to do.
	nc, err := nats.Connect(strings.Replace(s.Config().URL, "nats://", "nats://all:all@", 1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := nc.Request("$JS.API.STREAM.DELETE.BEATS_"+cluster, nil, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	for name, do := range forbidden {
		t.Run(name+" is refused", func(t *testing.T) {
			t.Parallel()
			if do(ctx) == nil {
				t.Error("it was allowed")
			}
		})
	}
}

// A mode is set by compare-and-set, read back, and taken back; whoever may do
// that may write no other fact.
func TestModesAreSet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := guardedServer(t)
	all, control := as(t, s, "all"), as(t, s, "control")
	if err := all.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	facts := all.KV(bus.Facts)
	for _, mode := range []string{"default", "shadow", "off", "active", "default", "default", "shadow"} {
		if err := SetMode(ctx, control, "endpoints", mode); err != nil {
			t.Fatalf("setting %s: %v", mode, err)
		}
		value, _, err := facts.Get(ctx, controller.ModeKey("endpoints"))
		if mode == "default" {
			if !errors.Is(err, bus.ErrNone) {
				t.Errorf("after %s there is %q, %v", mode, value, err)
			}
		} else if string(value) != mode || err != nil {
			t.Errorf("mode is %q, %v, want %s", value, err, mode)
		}
	}
	if _, err := control.KV(bus.Facts).Put(ctx, "zone.down", []byte("x"), 0, 0); err == nil {
		t.Error("another fact was written")
	}
}
