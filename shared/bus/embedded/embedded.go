// Package embedded runs a NATS server with JetStream inside the process, for
// `millrace standalone`, the demo and tests. It is one server: what it keeps is
// lost with its disk, which the API server can always rebuild.
package embedded

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	// readyWait bounds the start of a server. Unit: time. Source: a store of a
	// million keys opens in 2.6 s after a SIGKILL.
	readyWait = 30 * time.Second
	// MaxPayload is what the server takes in one message. Unit: bytes. Source:
	// the largest message the bus publishes, with its headers.
	MaxPayload = 4<<20 + 64<<10
	// unreserved is more than streams will ever be promised. Unit: bytes.
	unreserved = 1 << 50
)

// Options says what to run. The zero value is a server on a free port of the
// loopback interface that keeps its streams in a directory of its own.
type Options struct {
	// Dir holds the streams. Empty: a temporary directory, removed by Stop.
	Dir string
	// Host and Port are where it listens. Default: 127.0.0.1 and a free port.
	Host string
	Port int
	// Name is the server's name; ClusterName, ClusterPort and Routes make it one
	// of a cluster.
	Name        string
	ClusterName string
	ClusterPort int
	Routes      []string
	// MaxPayload is the largest message. Unit: bytes. Default: MaxPayload.
	MaxPayload int32
	// User and Password are the one login that it takes. Default: none is asked.
	User, Password string
	// SyncAlways writes to the disk before each answer.
	SyncAlways bool
	// Unreserved lets streams promise more bytes than the machine has: what they
	// hold is bounded by each stream alone. A server sets aside what a stream may
	// grow to, and on a small machine would refuse ours.
	Unreserved bool
	// Configure may change the server's own options before it starts.
	Configure func(*server.Options)
}

// Server is a running server.
type Server struct {
	server *server.Server
	login  *url.Userinfo
	remove string // directory to remove at Stop
}

// Start runs a server and returns when it takes connections.
func Start(o Options) (*Server, error) {
	s := &Server{}
	if o.User != "" {
		s.login = url.UserPassword(o.User, o.Password)
	}
	if o.Dir == "" {
		dir, err := os.MkdirTemp("", "millrace-nats-")
		if err != nil {
			return nil, fmt.Errorf("making directory of NATS: %w", err)
		}
		o.Dir, s.remove = dir, dir
	}
	var err error
	if s.server, err = server.NewServer(o.native()); err != nil {
		s.cleanup()
		return nil, fmt.Errorf("starting NATS: %w", err)
	}
	s.server.Start()
	if !s.server.ReadyForConnections(readyWait) {
		s.Stop()
		return nil, errors.New("starting NATS: not ready in time")
	}
	return s, nil
}

func (o Options) native() *server.Options {
	n := &server.Options{
		ServerName:            o.Name,
		Host:                  o.Host,
		Port:                  o.Port,
		JetStream:             true,
		StoreDir:              o.Dir,
		MaxPayload:            o.MaxPayload,
		MaxControlLine:        4096,
		NoSigs:                true,
		NoLog:                 true,
		SyncAlways:            o.SyncAlways,
		DisableShortFirstPing: true,
	}
	if n.Host == "" {
		n.Host = "127.0.0.1"
	}
	if n.Port == 0 {
		n.Port = server.RANDOM_PORT
	}
	if n.MaxPayload == 0 {
		n.MaxPayload = MaxPayload
	}
	n.Username, n.Password = o.User, o.Password
	if o.Unreserved {
		n.JetStreamMaxMemory, n.JetStreamMaxStore = unreserved, unreserved
	}
	if o.ClusterName != "" {
		n.Cluster = server.ClusterOpts{Name: o.ClusterName, Host: "127.0.0.1", Port: o.ClusterPort}
		n.Routes = server.RoutesFromStr(strings.Join(o.Routes, ","))
	}
	if o.Configure != nil {
		o.Configure(n)
	}
	return n
}

// URL is where clients connect, and, where one is asked for, as whom.
func (s *Server) URL() string {
	u, err := url.Parse(s.server.ClientURL())
	if err != nil || s.login == nil {
		return s.server.ClientURL()
	}
	u.User = s.login
	return u.String()
}

// Native is the server itself, for what tests need of it.
func (s *Server) Native() *server.Server { return s.server }

// Stop ends the server and waits until it has.
func (s *Server) Stop() {
	s.server.Shutdown()
	s.server.WaitForShutdown()
	s.cleanup()
}

func (s *Server) cleanup() {
	if s.remove != "" {
		_ = os.RemoveAll(s.remove) // a temporary directory; the system clears it too
	}
}
