package controller

import (
	"maps"
	"slices"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// caution orders modes: what holds for a part is the greater of two. What is not
// known is not allowed.
var caution = map[string]int{ModeActive: 0, ModeShadow: 1, ModeOff: 2, "": 3}

// cautious returns the more cautious of two modes.
func cautious(a, b string) string {
	if caution[a] >= caution[b] {
		return a
	}
	return b
}

// Mode returns what holds for a part of the role: the more cautious of the mode of
// the role and that of the part; empty, which allows nothing, while one of them is
// not known. The empty part is the role itself. A part that is off is not to be
// worked for: its writes are refused, and what the refusal ends is tried again.
// Whenever a part's mode changes, every key is looked at anew.
func (p *Partition) Mode(part string) string { return p.c.modeOf(part) }

func (c *Controller) modeOf(part string) string {
	mode := c.modes.mode()
	if part == "" {
		return mode
	}
	m := c.parts[part]
	if m == nil {
		return ModeOff // no such part
	}
	return cautious(mode, m.mode())
}

// newParts returns who follows the modes of the parts.
func (c *Controller) newParts() map[string]*modes {
	parts := make(map[string]*modes, len(c.def.Parts))
	for part, fallback := range c.def.Parts {
		m := newModes(ModeKey(PartName(c.def.Role, part)), fallback, c.log.With("part", part))
		m.turned = c.partTurned
		parts[part] = m
	}
	return parts
}

// partModes are the modes of the parts, by name.
func (c *Controller) partModes() (out []*millracev1.PartMode) {
	for _, part := range slices.Sorted(maps.Keys(c.parts)) {
		out = append(out, &millracev1.PartMode{Part: part, Own: c.parts[part].mode(), Holds: c.modeOf(part)})
	}
	return out
}

// partTurned makes every key be looked at once a part has another mode ⚠: what was
// left alone while it was off, or held back in shadow, counts as done, and no event
// will ask for it again; and what is intended in shadow is told only then. The mode
// is in force by now, so a key in hand is either woken by this or was answered by
// the new mode.
func (c *Controller) partTurned(string, string) {
	for _, p := range c.partitions() {
		p.shadow.reset()
		p.anew.Store(true)
		p.look()
	}
	c.announce()
}
