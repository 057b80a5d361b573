package kube

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// ⚠ What was allowed before the connection stood is not allowed for ever: a
// lease, a mode or a token may have run out while the transport dialled.
func TestAWriteIsAskedForAgainAfterALongDial(t *testing.T) {
	var arrived atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			return // as the API server does: half a request is none
		}
		arrived.Add(1)
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	dialling, dial := make(chan struct{}), make(chan struct{})
	conf := &rest.Config{Host: server.URL, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		close(dialling)
		<-dial
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	api, err := ConnectTo(conf, Config{QPS: -1}, "test", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var held atomic.Bool
	held.Store(true)
	lost := errors.New("the lease is lost")
	writer := api.Writer(WriteOptions{Guard: func(context.Context) error {
		if held.Load() {
			return nil
		}
		return lost
	}})
	done := make(chan error, 1)
	go func() { done <- writer.Delete(t.Context(), somePod, nil) }()
	<-dialling
	held.Store(false)
	time.AfterFunc(2*guardLife, func() { close(dial) })
	if err := <-done; !errors.Is(err, lost) || !errors.Is(err, ErrRefused) {
		t.Errorf("Delete() = %v, want it refused because %v", err, lost)
	}
	if n := arrived.Load(); n != 0 {
		t.Errorf("%d deletions were carried out", n)
	}
}
