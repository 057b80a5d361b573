package bus_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
)

func object(kind, namespace, name string) *millracev1.ObjectRef {
	return &millracev1.ObjectRef{Kind: kind, Namespace: namespace, Name: name}
}

// record writes records, each of a rule of its own, in order.
func record(t *testing.T, b *bus.Bus, records ...*millracev1.Decision) {
	t.Helper()
	for _, d := range records {
		sent := make(chan error, 1)
		b.RecordDecision(d, func(_ uint64, err error) { sent <- err })
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

func rules(t *testing.T, b *bus.Bus, kind event.Kind, key event.Key) (out []string) {
	t.Helper()
	found, err := b.Decisions(within(t), kind, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range found {
		out = append(out, d.GetRole()+" "+d.GetRule())
	}
	return out
}

func TestDecisionsAreFoundByKeyAndByObject(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "endpoints")
	service, slice := object("services", "shop", "web"), object("endpointslices.discovery.k8s.io", "shop", "web-1")
	pod, node := object("pods", "shop", "web.1"), object("nodes", "", "n1.example.org")
	record(t, b,
		&millracev1.Decision{Role: "endpoints", Rule: "1", Key: service, Object: slice},
		&millracev1.Decision{Role: "endpoints", Rule: "2", Key: object("services", "shop", "other"), Object: object("endpointslices.discovery.k8s.io", "shop", "other-1")},
		&millracev1.Decision{Role: "podevictor", Rule: "3", Key: pod, Object: pod},
		&millracev1.Decision{Role: "nodelifecycle", Rule: "4", Key: node, Object: node},
		&millracev1.Decision{Role: "nodelifecycle", Rule: "5", Key: node, Object: pod},
		&millracev1.Decision{Role: "endpoints", Rule: "6", Key: service, Object: object("endpointslices.discovery.k8s.io", "shop", "web-2")},
	)
	for _, tt := range []struct {
		of   *millracev1.ObjectRef
		want []string
	}{
		{service, []string{"endpoints 1", "endpoints 6"}},
		{slice, []string{"endpoints 1"}},
		{pod, []string{"podevictor 3", "nodelifecycle 5"}},
		{node, []string{"nodelifecycle 4", "nodelifecycle 5"}},
		{object("services", "shop", "we"), nil},
		{object("services", "", "web"), nil},
	} {
		got := rules(t, b, event.Kind(tt.of.GetKind()), event.Key{Namespace: tt.of.GetNamespace(), Name: tt.of.GetName()})
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("decisions about %v (-want +got):\n%s", tt.of, diff)
		}
	}
}

// What changes every second must not push out the records of all others.
func TestABusyObjectKeepsItsLastDecisions(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "endpoints")
	busy, calm := object("services", "shop", "busy"), object("services", "shop", "calm")
	record(t, b, &millracev1.Decision{Role: "r", Rule: "calm", Key: calm, Object: calm})
	kept := int(bustest.ConfigFor("").DecisionsPerObject)
	var want []string
	for i := range kept + 3 {
		rule := fmt.Sprint(i)
		record(t, b, &millracev1.Decision{Role: "r", Rule: rule, Key: busy, Object: busy})
		if i >= 3 {
			want = append(want, "r "+rule)
		}
	}
	if diff := cmp.Diff(want, rules(t, b, "services", event.Key{Namespace: "shop", Name: "busy"})); diff != "" {
		t.Errorf("of the busy one (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"r calm"}, rules(t, b, "services", event.Key{Namespace: "shop", Name: "calm"})); diff != "" {
		t.Errorf("of the calm one (-want +got):\n%s", diff)
	}
}

func TestPeekReadsTheEnvelope(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	m := event.Message{
		Kind: "pods", Key: event.Key{Namespace: "shop", Name: "web.1"}, Op: event.Put, UID: "u", Version: 7, Upto: 6, Epoch: 5,
		Hash: event.HashBody([]byte("body")), Projection: 1, Observed: time.UnixMicro(1700000000000000).UTC(), Body: []byte("body"),
	}
	if _, err := b.Peek(within(t), m.Kind, m.Key); !errors.Is(err, bus.ErrNone) {
		t.Errorf("Peek() of nothing = %v, want ErrNone", err)
	}
	want := m
	want.Seq, want.Body = mustPublish(t, b, m, 0), nil
	got, err := b.Peek(within(t), m.Kind, m.Key)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Peek() (-want +got):\n%s", diff)
	}
}
