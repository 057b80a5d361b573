package controller

import (
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// echoed reports whether the inputs show all that key has written. If not, key
// waits for that, within bounds: the way out is a live read. p.mu is held, so
// that what comes meanwhile finds the key waiting.
func (p *Partition) echoed(key event.Key) bool {
	writes, out := p.ledger.unseen(key, p.seen)
	if len(writes) == 0 {
		return true
	}
	if left := p.c.cfg.WriteWait - out; left > 0 {
		for _, w := range writes {
			at := object{w.Kind, w.Key}
			if p.echoes[at] == nil {
				p.echoes[at] = make(map[event.Key]struct{})
			}
			p.echoes[at][key] = struct{}{}
		}
		p.c.work.addAfter(p.item(key), left)
		return false
	}
	p.ledger.forget(key)
	p.ledger.mustReadLive(key)
	return true
}

// seen reports whether the input of w's kind shows w or something later.
func (p *Partition) seen(w protocol.Write) bool {
	if p.cache.Has(w.Kind) {
		return p.cache.Seen(w)
	}
	return p.c.wide.Seen(w)
}

// heard wakes the keys that wait for a write to one object.
func (p *Partition) heard(at object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rouse(at)
}

// heardKind wakes those that wait for a write to any object of a kind: a
// bookmark may have told of it.
func (p *Partition) heardKind(kind event.Kind) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for at := range p.echoes {
		if at.kind == kind {
			p.rouse(at)
		}
	}
}

func (p *Partition) rouse(at object) {
	for key := range p.echoes[at] {
		p.c.work.add(p.item(key), live)
	}
	delete(p.echoes, at)
}
