package kubetest

import (
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// addressPool hands out the pod addresses of one node.
type addressPool struct {
	first string // the range's own address, never given out

	mu    sync.Mutex
	taken map[types.UID]string
	used  map[string]bool
	turn  int // an address just freed is the last to come back, as in real networks
}

func newAddressPool(first string) *addressPool {
	return &addressPool{first: first, taken: map[types.UID]string{}, used: map[string]bool{}}
}

func (p *addressPool) cidr() string { return fmt.Sprintf("%s/%d", p.first, 32-podBits) }

// keep records an address a pod has already.
func (p *addressPool) keep(uid types.UID, addr string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[uid], p.used[addr] = addr, true
}

// take returns the pod's address, the same every time.
func (p *addressPool) take(uid types.UID) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if addr, ok := p.taken[uid]; ok {
		return addr, nil
	}
	const usable = 1<<podBits - 2 // without the first and the last
	for range usable {
		addr := offset(p.first, 1+p.turn%usable)
		p.turn++
		if !p.used[addr] {
			p.taken[uid], p.used[addr] = addr, true
			return addr, nil
		}
	}
	return "", fmt.Errorf("taking an address of %s: all %d are in use", p.cidr(), usable)
}

// give returns the address of a pod that is gone.
func (p *addressPool) give(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, p.taken[uid])
	delete(p.taken, uid)
}
