package main

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// etcd is the running store.
type etcd struct {
	*embed.Etcd
	url string
}

// startEtcd starts a single-member etcd in o.Dir and waits until it leads.
func startEtcd(ctx context.Context, o options) (*etcd, error) {
	// etcd opens its own listener, so the port is chosen here, closed and
	// reopened there; a thief in between shows as an error, never as a mix-up.
	l, err := listen(o.Dir, "etcd", o.Listen, o.EtcdPort)
	if err != nil {
		return nil, err
	}
	client := url.URL{Scheme: "http", Host: net.JoinHostPort(o.Listen, strconv.Itoa(portOf(l)))}
	if err := l.Close(); err != nil {
		return nil, fmt.Errorf("releasing the port of etcd: %w", err)
	}

	server, err := embed.StartEtcd(etcdConfig(o, client))
	if err != nil {
		return nil, fmt.Errorf("starting etcd: %w", err)
	}
	select {
	case <-server.Server.ReadyNotify():
		return &etcd{Etcd: server, url: client.String()}, nil
	case err = <-server.Err():
	case <-ctx.Done():
		err = ctx.Err()
	}
	server.Close()
	return nil, fmt.Errorf("waiting for etcd: %w", err)
}

func etcdConfig(o options, client url.URL) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "devcluster"
	cfg.Dir = filepath.Join(o.Dir, "etcd")
	cfg.UnsafeNoFsync = !o.Durable
	cfg.LogLevel = "warn"
	cfg.LogOutputs = []string{filepath.Join(o.Dir, "etcd.log")}
	cfg.EnableGRPCGateway = false // one listener less; compaction has its own door
	cfg.QuotaBackendBytes = 8 << 30

	// A lone member elects itself after one election timeout. The default of
	// 1 s would be a quarter of the whole start.
	cfg.TickMs, cfg.ElectionMs = 10, 100

	// Nobody ever dials the peer address, so it need not stay the same.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	return cfg
}

func (e *etcd) err() <-chan error { return e.Err() }

// stop closes etcd and waits at most within. etcd waits for its clients to hang
// up; one that does not must not hold the process.
func (e *etcd) stop(within time.Duration) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		e.Close()
	}()
	select {
	case <-closed:
	case <-time.After(within):
	}
}
