package podevictor

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// explain says of a pod why it will be deleted and what that waits for.
func (s *podEvictor) explain(p *controller.Partition, key event.Key) []string {
	s.mu.Lock()
	r := s.held[p]
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	return s.explainOf(r, key)
}

func (s *podEvictor) explainOf(r *reconciler, key event.Key) []string {
	r.mu.Lock()
	t := r.tasks[key]
	r.mu.Unlock()
	if t == nil {
		return []string{"not to be deleted"}
	}
	left := t.due.Sub(s.clusterTime()).Round(100 * time.Millisecond)
	text := fmt.Sprintf("to be deleted (%s): %s; due at %s, in %s", t.rule, t.why, t.due.UTC().Format(time.RFC3339), left)
	if left < 0 {
		text = fmt.Sprintf("to be deleted (%s): %s; due since %s", t.rule, t.why, -left)
	}
	text += "; waits for " + t.waiting
	if ahead, waiting := s.line.place(r.p, key); waiting > 0 {
		text += fmt.Sprintf(", %d of %d that wait have been due longer", ahead, waiting)
	}
	return []string{text}
}
