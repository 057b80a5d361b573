package main

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// back is how long a killed standalone may be without effect. Unit: time. Source:
// its own leases outlive it by 6 s, and reading everything anew takes another.
const back = 15 * time.Second

func (s *story) startAlone(ctx context.Context) error {
	took, err := s.runAlone(ctx, "standalone-1")
	if err != nil {
		return err
	}
	s.line.say("millrace standalone (NATS, watcher, %s, %s and %s in one process) is ready after %s", role, lifecycle, evictor, millis(took))
	return s.describe(ctx)
}

func (s *story) runAlone(ctx context.Context, name string) (took time.Duration, err error) {
	began := time.Now()
	m, err := s.f.Member(ctx, fleet.Standalone, name)
	if err != nil {
		return 0, err
	}
	err = m.AwaitReady(ctx)
	return time.Since(began), err
}

// restart: the process dies without a word, a pod fails meanwhile, and another
// process goes on on its folder.
func (s *story) restart(ctx context.Context) error {
	s.line.say("kill -9 of the process; api-0 becomes ready=false; it is started again on its folder")
	before := s.seen.count()
	s.f.Members(fleet.Standalone)[0].Kill()
	if _, err := s.setReady(ctx, "api-0", false); err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.runAlone(ctx, "standalone-2"); err != nil {
		return err
	}
	at, err := s.seen.await(ctx, "api", "api-1")
	if err != nil {
		return err
	}
	s.line.check("api-0 has left the slice", s.holder(ctx), at.Sub(began), back)
	for all := false; !all; { // whoever holds everything has looked at everything it cares for
		if _, all, err = s.held(ctx, "standalone-2"); err != nil {
			return err
		}
	}
	s.line.fact("that was the one slice written: nothing else had changed", s.seen.count() == before+1)
	return s.describe(ctx)
}

// end: one signal, and all of it drains.
func (s *story) end(ctx context.Context) error {
	m := s.f.Members(fleet.Standalone)[0]
	s.line.say("%s is told to stop", m.Name)
	began := time.Now()
	if err := m.Stop(ctx); err != nil {
		return fmt.Errorf("stopping: %w", err)
	}
	s.line.check("controllers, watcher and NATS have stopped", m.Name, time.Since(began), 2*takeover)
	return nil
}
