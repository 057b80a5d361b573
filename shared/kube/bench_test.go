package kube

import (
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// counting is Events that keeps nothing.
type counting struct{ n int }

func (c *counting) Replaced(uint64, []Object) {}
func (c *counting) Changed(Object, bool)      { c.n++ }
func (c *counting) Progress(uint64)           {}

// The way of one event from client-go's watch to Events, without decoding.
func BenchmarkDeliver(b *testing.B) {
	events := &counting{}
	w := &Watch{api: &API{}, events: events}
	inner := watch.NewFake()
	through := observe(b.Context(), inner, w, false)
	s := &sink{w: w, cancel: func(error) {}}
	pods := make([]*corev1.Pod, 1024)
	for i := range pods {
		pods[i] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "u", ResourceVersion: strconv.Itoa(i + 1)}}
	}
	go func() {
		for i := range b.N {
			inner.Modify(pods[i%len(pods)])
		}
		inner.Stop()
	}()
	b.ReportAllocs()
	b.ResetTimer()
	for e := range through.ResultChan() {
		if err := s.Update(e.Object); err != nil {
			b.Fatal(err)
		}
	}
	if events.n != b.N {
		b.Fatalf("%d of %d events arrived", events.n, b.N)
	}
}

func BenchmarkPreconditions(b *testing.B) {
	patch := []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := withPreconditions(somePod, patch); err != nil {
			b.Fatal(err)
		}
	}
}
