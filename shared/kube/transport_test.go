package kube

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/shared/event"
)

// answering connects to a server that always answers the same.
func answering(t *testing.T, cfg Config, code int, header http.Header) (*API, *wire) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		maps.Copy(w.Header(), header)
		w.WriteHeader(code)
	}))
	t.Cleanup(server.Close)
	return dialTo(t, &rest.Config{Host: server.URL}, cfg)
}

var somePod = Ref{Kind: Pods, Key: event.Key{Namespace: "a", Name: "b"}, UID: "u", Version: 1}

// ⚠ client-go obeys Retry-After up to ten times, for any verb and without asking
// whether we may still write.
func TestAWriteIsNeverRepeated(t *testing.T) {
	for _, code := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusInternalServerError} {
		api, wire := answering(t, Config{QPS: -1}, code, http.Header{"Retry-After": {"0"}})
		_, err := api.Writer(WriteOptions{}).Patch(t.Context(), somePod, []byte(`{"spec":{}}`))
		if err == nil || len(wire.take()) != 1 {
			t.Errorf("%d: a patch left more than once: %v", code, err)
		}
		if err := api.Writer(WriteOptions{}).Delete(t.Context(), somePod, nil); err == nil || len(wire.take()) != 1 {
			t.Errorf("%d: a delete left more than once: %v", code, err)
		}
		// The plain client as well, which libraries and event recorders use.
		_, err = api.Client().CoreV1().Events("a").Create(t.Context(), &corev1.Event{}, metav1.CreateOptions{})
		if err == nil || len(wire.take()) != 1 {
			t.Errorf("%d: a create left more than once: %v", code, err)
		}
		// Reads may be repeated.
		if _, err = api.GetOne(t.Context(), Pods, somePod.Key); err == nil || len(wire.take()) < 2 {
			t.Errorf("%d: a read was not repeated: %v", code, err)
		}
	}
}

func TestThrottledIsSorted(t *testing.T) {
	api, _ := answering(t, Config{QPS: -1}, http.StatusTooManyRequests, http.Header{"Retry-After": {"1"}})
	if _, err := api.Writer(WriteOptions{}).Patch(t.Context(), somePod, []byte(`{"spec":{}}`)); !errors.Is(err, ErrThrottled) {
		t.Errorf("got %v", err)
	}
}

// ⚠ A projected copy is never PUT, whoever asks and through whatever client.
func TestAProjectedCopyIsNeverPut(t *testing.T) {
	api, wire := answering(t, Config{QPS: -1}, http.StatusOK, nil)
	ctx, c := t.Context(), api.Client()
	puts := map[string]func() error{
		"a pod": func() error {
			_, err := c.CoreV1().Pods("a").Update(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.UpdateOptions{})
			return err
		},
		"a node's status": func() error {
			_, err := c.CoreV1().Nodes().UpdateStatus(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.UpdateOptions{})
			return err
		},
		"a quota's status": func() error {
			_, err := c.CoreV1().ResourceQuotas("a").UpdateStatus(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "b"}}, metav1.UpdateOptions{})
			return err
		},
		"through a client of one's own": func() error {
			other, err := rest.UnversionedRESTClientFor(withCodec(api.Rest()))
			if err != nil {
				return err
			}
			return other.Put().AbsPath("/api/v1/namespaces/a/services/b").Body([]byte("{}")).Do(ctx).Error()
		},
	}
	for name, put := range puts {
		if err := put(); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, want ErrMalformed", name, err)
		}
	}
	if got := wire.take(); len(got) != 0 {
		t.Errorf("these left: %q", got)
	}
}

func withCodec(conf *rest.Config) *rest.Config {
	conf.GroupVersion = &corev1.SchemeGroupVersion
	conf.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return conf
}

// ⚠ A lease can end while a write waits for the rate limiter.
func TestTheGuardIsAskedAtTheWire(t *testing.T) {
	api, wire := answering(t, Config{QPS: 2, Burst: 1}, http.StatusOK, nil)
	var lost atomic.Bool
	w := api.Writer(WriteOptions{Guard: func(context.Context) error {
		if lost.Load() {
			return errors.New("the lease is gone")
		}
		return nil
	}})
	_ = w.Delete(t.Context(), somePod, nil) // takes the only token
	wire.take()
	time.AfterFunc(100*time.Millisecond, func() { lost.Store(true) })
	began := time.Now()
	err := w.Delete(t.Context(), somePod, nil)
	if !errors.Is(err, ErrRefused) {
		t.Errorf("got %v, want ErrRefused", err)
	}
	if took := time.Since(began); took < 300*time.Millisecond {
		t.Errorf("the limiter let it wait only %s", took)
	}
	if got := wire.take(); len(got) != 0 {
		t.Errorf("these left: %q", got)
	}
}

func TestOneLimiterForAllClients(t *testing.T) {
	api, wire := answering(t, Config{QPS: 10, Burst: 2}, http.StatusNotFound, nil)
	began := time.Now()
	for range 3 {
		_, _ = api.GetOne(t.Context(), Pods, somePod.Key)
		_, _ = api.GetMetadata(t.Context(), Pods, somePod.Key)
	}
	if took := time.Since(began); took < 350*time.Millisecond {
		t.Errorf("six reads at 10/s after a burst of 2 took %s", took)
	}
	if n := len(wire.take()); n != 6 {
		t.Errorf("%d requests", n)
	}
}

func TestClusterTimeComesFromAnyAnswer(t *testing.T) {
	ahead := time.Now().Add(time.Hour)
	api, _ := answering(t, Config{QPS: -1}, http.StatusNotFound, http.Header{"Date": {ahead.UTC().Format(http.TimeFormat)}})
	if _, _, known := api.ClusterTime(time.Now()); known {
		t.Error("the time is known before an answer")
	}
	_, _ = api.GetOne(t.Context(), Pods, somePod.Key)
	got, skew, known := api.ClusterTime(time.Now())
	if !known || got.Sub(ahead).Abs() > 2*time.Second || (skew-time.Hour).Abs() > 2*time.Second {
		t.Errorf("%s, skew %s, %t; the server says %s", got, skew, known, ahead)
	}
}
