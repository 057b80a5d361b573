package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
)

// compactWithin bounds one compaction: seconds are plenty for the few thousand
// keys a test leaves behind.
const compactWithin = 30 * time.Second

// startAdmin opens a loopback port with the one thing about the store that a
// test cannot do through the API server: forgetting history.
func startAdmin(store *etcd) (*http.Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for admin requests: %w", err)
	}
	client := v3client.New(store.Server)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /compact", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), compactWithin)
		defer cancel()
		revision, err := compact(ctx, client)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]int64{"revision": revision})
	})
	server := &http.Server{Addr: l.Addr().String(), Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go server.Serve(l)
	return server, nil
}

// compact forgets every revision but the current one and returns it. A watch
// from an older revision is answered 410 Gone from then on, unless the API
// server still has the events in memory: restart it to be certain.
func compact(ctx context.Context, client *clientv3.Client) (int64, error) {
	got, err := client.Get(ctx, "/registry/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return 0, fmt.Errorf("reading the current revision: %w", err)
	}
	if _, err := client.Compact(ctx, got.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return 0, fmt.Errorf("compacting to revision %d: %w", got.Header.Revision, err)
	}
	return got.Header.Revision, nil
}
