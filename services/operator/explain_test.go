package operator

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

func TestKindOf(t *testing.T) {
	for word, want := range map[string]event.Kind{
		"pod": "pods", "PO": "pods", "pods": "pods", "svc": "services", "eps": "endpointslices.discovery.k8s.io",
		"endpointslices": "endpointslices.discovery.k8s.io", "endpointslices.discovery.k8s.io": "endpointslices.discovery.k8s.io",
		"ep": "endpoints", "deploy": "deployments.apps", "widgets.example.org": "widgets.example.org", "no": "nodes",
	} {
		if got := kindOf(word); got != want {
			t.Errorf("kindOf(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestFlagsStandAnywhere(t *testing.T) {
	for _, args := range []string{"-n 3 pod a/b -o json", "pod a/b -n 3 -o json", "pod -o=json -n=3 a/b"} {
		s := session{args: strings.Fields(args), out: &bytes.Buffer{}}
		n, format := 0, ""
		words, err := flags("explain", s.args, explainFlags(&format, &n), "KIND", "KEY")
		if err != nil || n != 3 || format != "json" || words[0] != "pod" || words[1] != "a/b" {
			t.Errorf("%q: %v -n %d -o %s, %v", args, words, n, format, err)
		}
	}
	for args, want := range map[string]string{"pod": "KEY is missing", "pod a/b c": `"c" is not expected`, "pod a/b -x": "-x"} {
		n, format := 0, ""
		if _, err := flags("explain", strings.Fields(args), explainFlags(&format, &n), "KIND", "KEY"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want it to say %s", args, err, want)
		}
	}
}

// An explanation reads as a story: what it is, who holds it, why it was written.
func TestRenderExplanationTellsTheStory(t *testing.T) {
	at := func(d time.Duration) *timestamppb.Timestamp { return timestamppb.New(now.Add(d)) }
	slice := &millracev1.ObjectRef{Kind: "endpointslices.discovery.k8s.io", Namespace: "shop", Name: "web-1", Uid: "u", Version: 12}
	service := &millracev1.ObjectRef{Kind: "services", Namespace: "shop", Name: "web"}
	pod := &millracev1.ObjectRef{Kind: "pods", Namespace: "shop", Name: "web-0", Version: 11}
	d := decisionOf(&millracev1.Decision{
		Role: "endpoints", Verb: "update", Base: 9, Object: slice, Key: service, Rule: "slices", Detail: "because it is so", Host: "endpoints-2", Member: "m", Partition: 3, Epoch: 4,
		Outcome: millracev1.Outcome_OUTCOME_TAKEN, At: at(30 * time.Millisecond), Taken: at(20 * time.Millisecond),
		Cause:  &millracev1.Cause{Object: pod, Op: "put", Observed: at(0), Received: at(5 * time.Millisecond)},
		Inputs: []*millracev1.ObjectRef{pod, service}, MoreInputs: 7,
	})
	refused := decisionOf(&millracev1.Decision{
		Role: "endpoints", Verb: "delete", Base: 8, Object: slice, Key: service, At: at(0),
		Outcome: millracev1.Outcome_OUTCOME_REFUSED, ErrorClass: "conflict", Error: "object has changed", Job: "trim", Epoch: 9,
	})
	held := decisionOf(&millracev1.Decision{
		Role: "endpoints", Verb: "create", Object: slice, Key: service, At: at(0), Outcome: millracev1.Outcome_OUTCOME_INTENDED,
	})
	x := &Explanation{
		Kind: slice.GetKind(), Key: "shop/web-1", LiveProblem: "the API server was not asked", BusProblem: "it holds nothing about it",
		Holders: []Holder{holderOf(&millracev1.ExplainAnswer{
			Member: &millracev1.Member{Id: "m", Role: "endpoints", Host: "endpoints-2"}, Partition: 3, Epoch: 4, Cached: slice, Mode: "shadow",
			Keys: []*millracev1.KeyState{{
				Key: service, State: "parked", WaitsFor: "pods is 31s old", Failures: 2, LastError: "no way",
				NextTry: durationpb.New(time.Second), Unseen: []*millracev1.ObjectRef{slice},
			}},
		})},
		Decisions:   []Decision{held, refused, d},
		DeadLetters: []DeadLetter{{Role: "endpoints", Reason: "too large", At: now}},
	}
	var out bytes.Buffer
	if err := RenderExplanation(&out, x, now.Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + out.String())
	for _, want := range []string{
		"last write: update of endpointslices.discovery.k8s.io shop/web-1, version 9 → 12", "replica endpoints-2",
		"the put of pods shop/web-0 (version 11)", "5ms to the replica, 15ms until taken in hand, 10ms until written",
		"job trim, epoch 9", "rule slices", "why      because it is so", "7 more", "not taken (conflict)", "object has changed", "held back in shadow mode", "partition 3, epoch 4",
		"no event", "waits for: pods is 31s old", "failed 2 times, last: no way", "looks again in 1s", "in shadow mode", "too large",
		"the API server was not asked", "it holds nothing about it", "not seen to come back: endpointslices",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "to the watcher") {
		t.Error("it tells an age that nobody knows")
	}
}
