package controller

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// Controller is one role of this process.
type Controller struct{}

// New returns a role that does not run yet. It fails only for a configuration or
// definition that cannot work. log and reg may be nil.
func New(cfg Config, def Definition, bus Bus, log *slog.Logger, reg prometheus.Registerer) (*Controller, error) {
	return &Controller{}, nil
}

// Run runs a role until ctx ends: New and Serve.
func Run[G Grant](ctx context.Context, cfg Config, def Definition, bus Bus, l Lease[G], log *slog.Logger, reg prometheus.Registerer) error {
	c, err := New(cfg, def, bus, log, reg)
	if err != nil {
		return err
	}
	return Serve(ctx, c, l)
}

// Serve runs a role until ctx ends or l fails.
func Serve[G Grant](ctx context.Context, c *Controller, l Lease[G]) error { return nil }

// Status returns what this member holds and knows; the process fills in the
// rest. It never blocks.
func (c *Controller) Status() *millracev1.MemberStatus { return nil }

// Ready returns what is missing, nil if nothing is: a kind that nobody watches,
// one too old, partitions being read.
func (c *Controller) Ready() error { return nil }
