package telemetry

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Health knows what a process waits for. A process that has named nothing yet is
// starting, not ready.
type Health struct {
	mu    sync.Mutex
	ready map[string]*check
	live  map[string]*check
	parts map[string]*Health
}

type check struct{ f func() error }

// Ready adds something that must be so before the process counts as ready; f
// returns what is missing, in words for an operator, and must not block. The
// same name again replaces it. The function returned takes it away.
func (h *Health) Ready(name string, f func() error) (remove func()) {
	return h.add(&h.ready, name, f)
}

// Live adds something without which the process must be restarted. Nothing
// outside the process belongs here.
func (h *Health) Live(name string, f func() error) (remove func()) {
	return h.add(&h.live, name, f)
}

// Within returns the health of a part of the process: what it waits for, the
// process waits for, and says under the part's name. A part that has named
// nothing yet is starting. The same name again returns the same part.
func (h *Health) Within(part string) *Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.parts == nil {
		h.parts = map[string]*Health{}
	}
	if h.parts[part] == nil {
		h.parts[part] = &Health{}
	}
	return h.parts[part]
}

func (h *Health) add(to *map[string]*check, name string, f func() error) func() {
	c := &check{f}
	h.mu.Lock()
	defer h.mu.Unlock()
	if *to == nil {
		*to = map[string]*check{}
	}
	(*to)[name] = c
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if (*to)[name] == c { // not what has replaced it
			delete(*to, name)
		}
	}
}

// Missing returns what the process waits for, one reason a line, sorted; empty
// when it is ready.
func (h *Health) Missing() []string {
	h.mu.Lock()
	none := len(h.ready) == 0 && len(h.parts) == 0
	h.mu.Unlock()
	if none {
		return []string{"process: starting"}
	}
	return h.run(&h.ready, (*Health).Missing)
}

// Dead returns why the process must be restarted.
func (h *Health) Dead() []string { return h.run(&h.live, (*Health).Dead) }

// run asks every check, and every part by ask.
func (h *Health) run(from *map[string]*check, ask func(*Health) []string) []string {
	h.mu.Lock()
	checks, parts := maps.Clone(*from), maps.Clone(h.parts)
	h.mu.Unlock()
	var missing []string
	for name, c := range checks {
		if err := c.f(); err != nil {
			missing = append(missing, fmt.Sprintf("%s: %v", name, err))
		}
	}
	for name, part := range parts {
		for _, reason := range ask(part) {
			missing = append(missing, name+": "+reason)
		}
	}
	slices.Sort(missing)
	return missing
}
