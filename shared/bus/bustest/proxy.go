package bustest

import (
	"net"
	"net/url"
	"sync"
	"testing"
)

// Proxy stands between a bus and a server, and can take the line away.
type Proxy struct {
	target   string
	listener net.Listener
	tasks    sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	cut    bool
	frozen chan struct{} // closed by Thaw; nil while bytes flow
}

// NewProxy starts a proxy to the server at address until the test ends.
func NewProxy(t testing.TB, address string) *Proxy {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: u.Host, listener: l, open: map[net.Conn]struct{}{}}
	p.tasks.Go(p.accept)
	t.Cleanup(func() {
		_ = l.Close()
		p.Thaw()
		p.Cut()
		p.tasks.Wait()
	})
	return p
}

// URL is where clients connect.
func (p *Proxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Cut closes every connection and lets none in until Mend.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	for c := range p.open {
		_ = c.Close()
	}
}

// Mend lets connections in again.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = false
}

// Drop closes every connection and lets new ones in at once.
func (p *Proxy) Drop() {
	p.Cut()
	p.Mend()
}

// Freeze keeps connections open and moves no byte until Thaw.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

// Thaw moves bytes again, those held back first.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.admit(client, server) {
			continue
		}
		p.tasks.Go(func() { p.pump(client, server) })
		p.tasks.Go(func() { p.pump(server, client) })
	}
}

func (p *Proxy) admit(client, server net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cut {
		_, _ = client.Close(), server.Close()
		return false
	}
	p.open[client], p.open[server] = struct{}{}, struct{}{}
	return true
}

// pump moves bytes one way until either side ends.
func (p *Proxy) pump(from, to net.Conn) {
	defer func() {
		_, _ = from.Close(), to.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.open, from)
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen != nil {
			<-frozen
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
