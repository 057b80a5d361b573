// Package role is what every controller is wired from: the bus, the API server,
// a lease on partitions, the frame, and what the process says about them. A
// service adds its definition and nothing else.
package role

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/lease"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/rates"
)

// Edges are a role's connections.
type Edges struct {
	Bus *bus.Bus
	API *kube.API

	env     *process.Env
	name    string
	host    string
	started time.Time
	missing atomic.Pointer[string] // what the bus lacks; nil: not asked yet
	rates   *rates.Rates
	jobs    []job
	pause   *pause
	rights  *rights // nil: none were stated
}

// Connect opens both edges under the name of a role. Neither has to be there
// yet: what is missing stands in /readyz.
func Connect(ctx context.Context, env *process.Env, name string, b bus.Config, k kube.Config) (*Edges, error) {
	kube.RedirectLogs(env.Telemetry.Log)
	events, err := bus.Connect(ctx, b, name, env.Log, env.Registry)
	if err != nil {
		return nil, badConfig("NATS", err)
	}
	api, err := kube.Connect(k, "millrace-"+name, env.Log, env.Telemetry.Registry)
	if err != nil {
		events.Close()
		return nil, badConfig("KUBE", err)
	}
	kube.RegisterQueueMetrics(env.Telemetry.Registry)
	e := &Edges{Bus: events, API: api, env: env, name: name, host: hostname(), started: time.Now()}
	e.rates = rates.New(rates.Config{Role: name, Taker: e.host}, events.KV(bus.Rates), events, env.Log, env.Registry)
	e.pause = newPause(name, api.Paused, env.Log, env.Registry)
	env.Health.Ready("bus", e.busReady)
	return e, nil
}

func badConfig(group string, err error) error {
	return fmt.Errorf("%w: MILLRACE_%s: %w", process.ErrConfig, group, err)
}

// Close closes the edges.
func (e *Edges) Close() { e.Bus.Close() }

// hostname is POD_NAME, which a deployment sets, or the machine's name.
func hostname() string {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return pod
	}
	host, _ := os.Hostname() // for people; empty is better than an excuse
	return host
}

func (e *Edges) busReady() error {
	if !e.Bus.State().Connected {
		return errors.New("NATS is away")
	}
	switch missing := e.missing.Load(); {
	case missing == nil:
		return errors.New("streams have not been verified")
	case *missing != "":
		return errors.New(*missing)
	}
	return nil
}

// verifyPause is how often a bus that does not fit is looked at again. Unit:
// time.
const verifyPause = 500 * time.Millisecond

// AwaitBus waits until the streams are there and fit this build. check is
// bus.Bus.Verify, or Ensure for who may create them.
func (e *Edges) AwaitBus(ctx context.Context, check func(ctx context.Context) error) error {
	for said := ""; ; {
		err := check(ctx)
		text := ""
		if err != nil {
			text = err.Error()
		}
		e.missing.Store(&text)
		if err == nil {
			return nil
		}
		if text != said && ctx.Err() == nil {
			said = text
			e.env.Log.Warn("waiting for the bus", "reason", text)
		}
		select {
		case <-time.After(verifyPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Run waits for the bus, then runs a controller on the partitions that this
// process is given, until ctx ends and everything has been handed over.
func (e *Edges) Run(ctx context.Context, cfg controller.Config, def controller.Definition) error {
	if err := e.AwaitBus(ctx, e.Bus.Verify); err != nil {
		return err
	}
	def.Clock = e.API
	def.Host = e.host
	def.Pause = e.pause
	e.env.Health.Ready("pause", e.pause.ready)
	looking, stop := context.WithCancel(ctx)
	defer stop()
	go e.pause.run(looking)
	if e.rights != nil {
		go e.rights.run(looking)
	}
	c, err := controller.New(cfg, def, e.Bus, e.env.Log, e.env.Registry)
	if err != nil {
		return fmt.Errorf("%w: %w", process.ErrConfig, err)
	}
	units := make([]string, e.Bus.Partitions())
	for i := range units {
		units[i] = strconv.Itoa(i)
	}
	l := e.Lease(units, c.Joinable(), c.Status)
	e.env.Health.Ready("controller", c.Ready)
	defer e.serveRates(ctx)()
	defer e.serveJobs(ctx, c)()
	return controller.Serve(ctx, c, l)
}

// Lease returns this process's part in sharing units. ready is closed when it
// may count as a member; status is what it says when asked.
func (e *Edges) Lease(units []string, ready <-chan struct{}, status func() *millracev1.MemberStatus) *lease.Lease {
	var l *lease.Lease
	l = lease.New(lease.Config{
		Role: e.name, Cluster: e.Bus.Cluster(), Units: units,
		Host: e.host, Version: e.env.Version, Ready: ready,
		Status: func() []byte { return e.status(l.Member(), status()) },
	}, e.Bus.KV(bus.Own), e.Bus, e.env.Log, e.env.Registry)
	e.env.Health.Ready("lease", l.Ready)
	return l
}

// Group returns this process's part in sharing units among the members of the
// role, apart from those that Lease shares. The membership counts at once, and
// nothing of it stands in status, metrics or readiness.
func (e *Edges) Group(name string, units []string) *lease.Lease {
	return lease.New(lease.Config{
		Role: e.name + "." + name, Cluster: e.Bus.Cluster(), Units: units, Host: e.host, Version: e.env.Version,
	}, e.Bus.KV(bus.Own), e.Bus, e.env.Log.With("group", name), nil)
}

// status completes what a role says with what the process knows.
func (e *Edges) status(member string, s *millracev1.MemberStatus) []byte {
	s.Member = &millracev1.Member{
		Id: member, Role: e.name, Host: e.host, Version: e.env.Version, Started: timestamppb.New(e.started),
	}
	s.NotReady = e.env.Health.Missing()
	s.Rates = e.rates.Status()
	s.Paused = e.pause.status()
	s.ResidentBytes = residentBytes()
	b, err := proto.Marshal(s)
	if err != nil {
		e.env.Log.Error("forming status", "error", err)
	}
	return b
}

// residentBytes reads what the kernel says of this process; 0 elsewhere than on
// Linux.
func residentBytes() uint64 {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(statm), &size, &resident); err != nil {
		return 0
	}
	return resident * uint64(os.Getpagesize()) //nolint:gosec // positive
}
