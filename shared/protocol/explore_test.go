package protocol

import (
	"flag"
	"fmt"
	"math/bits"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

// The explorer visits every state that a small world can reach, by breadth
// first search, so that the first failure it finds is a shortest one. The
// machines in these worlds are the real ones; the API server, the stream, the
// bucket, the connections and what goes wrong with them are modelled in the
// files explore_*_test.go, each step atomic.
//
// Two kinds of property are checked:
//
//   - at every step, what the step itself must not do (see each world);
//   - from every state, that once nothing more goes wrong the world *heals*: a
//     fixed, fair order of the ordinary steps comes to rest, and at rest
//     everything agrees. A chain of healing steps that meets a state again
//     never comes to rest, which is a failure too.
//
// Healing steps are ordinary steps, so a chain that reaches a state that is
// known to heal has healed: on the whole it costs about one step per state.

var exploreDepth = flag.String("explore.depth", "short", "how much may go wrong in the worlds of the explorer: short or long")

// TestMain lets the heap grow: the explorer makes short-lived copies of worlds,
// and half its time would go into looking for them.
func TestMain(m *testing.M) {
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(2 << 30) // and not further than this
	os.Exit(m.Run())
}

// step is one thing that can happen. What a and b mean depends on what.
type step struct {
	what act
	a, b int8
}

// world is one state of everything.
type world interface {
	clone() world
	// steps lists what may happen next.
	steps(into []step) []step
	// take lets s happen and says what it violates.
	take(s step) (violation string)
	// heal is the next healing step; none at rest.
	heal() (s step, more bool)
	// rest says what is wrong at rest.
	rest() (violation string)
	// encode writes what distinguishes this state from others.
	encode(c *code)
	// describe says what s means in this state.
	describe(s step) string
}

// code is the canonical form of a state. Sequences are replaced by their order:
// states that differ only in how far the counter has come are the same state.
type code struct {
	words []uint64
	seqs  []int // words that are sequences
	order []uint64
	gap   uint64 // distances between sequences above this are the same
}

func (c *code) num(values ...uint64) { c.words = append(c.words, values...) }

func (c *code) int(v int) { c.num(uint64(v)) } //nolint:gosec // only told apart

func (c *code) bool(values ...bool) {
	w := uint64(1)
	for _, v := range values {
		w <<= 1
		if v {
			w |= 1
		}
	}
	c.num(w)
}

func (c *code) seq(v uint64) {
	c.seqs = append(c.seqs, len(c.words))
	c.num(v)
}

type hash [2]uint64

func (c *code) of(w world) hash {
	c.words, c.seqs, c.order = c.words[:0], c.seqs[:0], append(c.order[:0], 0)
	w.encode(c)
	for _, i := range c.seqs {
		c.order = append(c.order, c.words[i])
	}
	slices.Sort(c.order)
	c.order = slices.Compact(c.order)
	for _, i := range c.seqs {
		at, _ := slices.BinarySearch(c.order, c.words[i])
		c.words[i] = c.rank(at)
	}
	h := hash{0x243f6a8885a308d3, 0x13198a2e03707344}
	for _, v := range c.words {
		hi, lo := bits.Mul64(h[0]^v, 0x9e3779b97f4a7c15)
		h[0] = lo ^ bits.RotateLeft64(hi, 29)
		hi, lo = bits.Mul64(h[1]+v, 0xd6e8feb86659fd93)
		h[1] = hi ^ lo ^ bits.RotateLeft64(h[0], 17)
	}
	return h
}

func (c *code) rank(at int) uint64 {
	if c.gap <= 1 {
		return uint64(at) //nolint:gosec // an index
	}
	var r uint64
	for i := 1; i <= at; i++ {
		r += min(c.order[i]-c.order[i-1], c.gap)
	}
	return r
}

// node is one visited state, by how it was reached first.
type node struct {
	parent int32
	depth  int16
	step   step
}

type outcome struct {
	states, depth int
	complete      bool
	violation     string
	trace         []string
	took          time.Duration
}

// explore visits everything that can be reached from root, up to limit states.
func explore(root func() world, limit int, gap uint64) (o outcome) {
	start := time.Now()
	x := &explorer{root: root, healed: map[hash]struct{}{}, seen: map[hash]struct{}{}, code: code{gap: gap}}
	defer func() {
		o.states, o.took = len(x.nodes), time.Since(start)
		if len(x.nodes) > 0 {
			o.depth = int(x.nodes[len(x.nodes)-1].depth)
		}
	}()
	type open struct {
		w  world
		at int32
	}
	first := root()
	x.seen[x.code.of(first)] = struct{}{}
	x.nodes = append(x.nodes, node{parent: -1})
	queue := []open{{first, 0}}
	var todo []step
	for len(queue) > 0 {
		at := queue[0]
		queue[0].w = nil
		queue = queue[1:]
		if bad, healing := x.heals(at.w); bad != "" {
			o.violation, o.trace = bad, x.trace(at.at, healing)
			return o
		}
		todo = at.w.steps(todo[:0])
		for _, s := range todo {
			next := at.w.clone()
			bad := next.take(s)
			if bad != "" {
				o.violation, o.trace = bad, x.trace(at.at, nil, s)
				return o
			}
			h := x.code.of(next)
			if _, known := x.seen[h]; known {
				continue
			}
			if len(x.nodes) >= limit {
				return o
			}
			x.seen[h] = struct{}{}
			x.nodes = append(x.nodes, node{parent: at.at, depth: x.nodes[at.at].depth + 1, step: s})
			queue = append(queue, open{next, int32(len(x.nodes) - 1)}) //nolint:gosec // limit is far below
		}
	}
	o.complete = true
	return o
}

type explorer struct {
	root         func() world
	nodes        []node
	seen, healed map[hash]struct{}
	code         code
	chain        []hash
}

// heals follows the healing steps from w until they reach a state that is known
// to heal, or rest.
func (x *explorer) heals(w world) (violation string, healing []step) {
	h := x.code.of(w)
	if _, ok := x.healed[h]; ok {
		return "", nil
	}
	w = w.clone()
	x.chain = append(x.chain[:0], h)
	for {
		s, more := w.heal()
		if !more {
			if bad := w.rest(); bad != "" {
				return "at rest: " + bad, healing
			}
			break
		}
		healing = append(healing, s)
		if bad := w.take(s); bad != "" {
			return "healing: " + bad, healing
		}
		h = x.code.of(w)
		if _, ok := x.healed[h]; ok {
			break
		}
		if slices.Contains(x.chain, h) {
			return "never comes to rest", healing
		}
		x.chain = append(x.chain, h)
	}
	for _, h := range x.chain {
		x.healed[h] = struct{}{}
	}
	return "", nil
}

// trace tells how a state was reached, and what followed.
func (x *explorer) trace(at int32, healing []step, then ...step) (lines []string) {
	var path []step
	for ; at > 0; at = x.nodes[at].parent {
		path = append(path, x.nodes[at].step)
	}
	slices.Reverse(path)
	path = append(path, then...)
	w := x.root()
	for i, s := range path {
		lines = append(lines, fmt.Sprintf("%2d. %s", i+1, w.describe(s)))
		w.take(s)
	}
	for _, s := range healing {
		lines = append(lines, "    heal: "+w.describe(s))
		w.take(s)
	}
	return lines
}

func (o outcome) String() string {
	lines := o.trace
	if len(lines) > 60 {
		lines = append(slices.Clone(lines[:60]), "…")
	}
	return fmt.Sprintf("%s\n%s", strings.Join(lines, "\n"), o.violation)
}

// length is the number of steps before the failure, healing not counted.
func (o outcome) length() int {
	n := 0
	for _, l := range o.trace {
		if !strings.Contains(l, "heal: ") {
			n++
		}
	}
	return n
}

// long reports whether the long form was asked for.
func long(t *testing.T) bool {
	t.Helper()
	switch *exploreDepth {
	case "short":
		return false
	case "long":
		return true
	default:
		t.Fatalf("-explore.depth=%s: want short or long", *exploreDepth)
		return false
	}
}
