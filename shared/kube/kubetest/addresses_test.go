package kubetest

import (
	"net/netip"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestAnAddressPool(t *testing.T) {
	const usable = 1<<podBits - 2
	uid := func(i int) types.UID { return types.UID(strconv.Itoa(i)) }
	p := newNode("n", 3).pods
	cidr := netip.MustParsePrefix(p.cidr())

	seen := map[string]bool{}
	for i := range usable {
		addr, err := p.take(uid(i))
		if err != nil || seen[addr] || !cidr.Contains(netip.MustParseAddr(addr)) {
			t.Fatalf("take %d = %s, %v; want a new address of %s", i, addr, err, cidr)
		}
		seen[addr] = true
	}
	t.Run("gives a pod the same address again", func(t *testing.T) {
		first, _ := p.take(uid(7))
		if second, err := p.take(uid(7)); err != nil || second != first {
			t.Errorf("take() = %s, %v; want %s", second, err, first)
		}
	})
	t.Run("says so when it is empty", func(t *testing.T) {
		if addr, err := p.take(uid(usable)); err == nil {
			t.Errorf("take() = %s, want an error", addr)
		}
	})
	t.Run("gives an address returned to the next pod", func(t *testing.T) {
		old, _ := p.take(uid(7))
		p.give(uid(7))
		if addr, err := p.take(uid(usable)); err != nil || addr != old {
			t.Errorf("take() = %s, %v; want %s", addr, err, old)
		}
	})
	t.Run("leaves alone what a pod had before", func(t *testing.T) {
		fresh := newAddressPool("10.0.0.0")
		fresh.keep("old", "10.0.0.1")
		if addr, err := fresh.take("new"); err != nil || addr != "10.0.0.2" {
			t.Errorf("take() = %s, %v; want 10.0.0.2", addr, err)
		}
	})
}
