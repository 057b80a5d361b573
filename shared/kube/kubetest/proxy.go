package kubetest

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// errCut is what a reader of a cut watch gets.
var errCut = errors.New("watch cut by the test")

// Proxy stands between one client and the API server and makes that client's
// view old, broken or absent, while everybody else's stays right. Requests pass
// with their bearer token, so that rights are the caller's own. Its methods may
// be called from several goroutines.
//
// Resources are named as in the path: "pods", "endpointslices"; "" means all.
type Proxy struct {
	cluster *Cluster
	server  *httptest.Server

	mu      sync.Mutex
	faults  map[string]fault // by resource
	streams map[*stream]struct{}
	down    bool
	ahead   time.Duration // by how much the Date of every answer is
	changed chan struct{} // closed and replaced at every change of the above
}

// fault is what happens to the watches of one resource.
type fault struct {
	held    bool
	refused bool
	delay   time.Duration
}

// StartProxy starts a proxy in front of c and stops it when the test ends.
func StartProxy(t testing.TB, c *Cluster) *Proxy {
	t.Helper()
	p, err := NewProxy(c)
	if err != nil {
		t.Fatalf("starting a proxy: %v", err)
	}
	t.Cleanup(p.Close)
	return p
}

// NewProxy is StartProxy for programs that are no tests; the caller closes it.
func NewProxy(c *Cluster) (*Proxy, error) {
	target, err := url.Parse(c.Server())
	if err != nil {
		return nil, fmt.Errorf("reading the server's URL: %w", err)
	}
	// The client's own Authorization header is passed on: the transport carries
	// no identity, only the authority.
	anonymous := rest.AnonymousClientConfig(c.Admin())
	transport, err := rest.TransportFor(anonymous)
	if err != nil {
		return nil, fmt.Errorf("making a transport: %w", err)
	}
	p := &Proxy{
		cluster: c,
		faults:  map[string]fault{},
		streams: map[*stream]struct{}{},
		changed: make(chan struct{}),
	}
	reverse := &httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:      transport,
		FlushInterval:  -1, // an event must not wait for the next one
		ModifyResponse: p.wrapWatch,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0), // cut connections are its purpose
	}
	p.server = httptest.NewUnstartedServer(p.gate(reverse))
	p.server.EnableHTTP2 = true
	p.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.server.StartTLS()
	return p, nil
}

// Config is the cluster's Config of a role, but through the proxy.
func (p *Proxy) Config(role string) *rest.Config {
	cfg := p.cluster.Config(role)
	cfg.Host = p.server.URL
	cfg.TLSClientConfig = rest.TLSClientConfig{CAData: p.authority()}
	return cfg
}

// Kubeconfig writes a kubeconfig of a role that goes through the proxy, and
// returns its path.
func (p *Proxy) Kubeconfig(role string) (string, error) {
	cfg, err := clientcmd.LoadFromFile(p.cluster.Kubeconfig(role))
	if err != nil {
		return "", fmt.Errorf("reading the kubeconfig of %s: %w", role, err)
	}
	for _, cluster := range cfg.Clusters {
		cluster.Server, cluster.CertificateAuthorityData = p.server.URL, p.authority()
	}
	port := p.server.Listener.Addr().(*net.TCPAddr).Port
	file := filepath.Join(p.cluster.dir, fmt.Sprintf("%s-through-%d.kubeconfig", role, port))
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", role, err)
	}
	return file, nil
}

// authority is the PEM certificate the proxy is to be trusted by.
func (p *Proxy) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw})
}

// Hold keeps every event of the resource's watches back until Release; the
// watches stay open and look quiet. Lists and single reads pass.
func (p *Proxy) Hold(resource string) { p.change(resource, func(f *fault) { f.held = true }) }

// Release lets go what Hold kept back, in order.
func (p *Proxy) Release(resource string) { p.change(resource, func(f *fault) { f.held = false }) }

// Delay makes every later event of the resource's watches late by d, in order;
// 0 ends it.
func (p *Proxy) Delay(resource string, d time.Duration) {
	p.change(resource, func(f *fault) { f.delay = d })
}

// Cut breaks the resource's open watches in the middle, as a lost connection
// does; client-go then lists again. New watches are let through.
func (p *Proxy) Cut(resource string) { p.finish(resource, errCut) }

// End finishes the resource's open watches cleanly, as the server does when a
// watch reaches its time limit; client-go then watches on from where it was.
func (p *Proxy) End(resource string) { p.finish(resource, io.EOF) }

func (p *Proxy) finish(resource string, cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		if resource == "" || s.resource == resource {
			s.finish(cause)
		}
	}
}

// Refuse answers new watches of the resource 503 until Accept, and breaks the
// open ones.
func (p *Proxy) Refuse(resource string) {
	p.change(resource, func(f *fault) { f.refused = true })
	p.Cut(resource)
}

// Accept ends Refuse.
func (p *Proxy) Accept(resource string) { p.change(resource, func(f *fault) { f.refused = false }) }

// Down breaks every connection and every further request until Up: to the
// client, the API server is gone.
func (p *Proxy) Down() {
	p.mu.Lock()
	p.down = true
	p.mu.Unlock()
	p.Cut("")
	p.server.CloseClientConnections()
}

// Up ends Down.
func (p *Proxy) Up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// Ahead makes the client read the server's clock as being that far ahead, or
// behind when negative: the same as its own clock being off the other way.
func (p *Proxy) Ahead(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ahead = d
}

// shiftDate is what Ahead does to an answer.
func (p *Proxy) shiftDate(resp *http.Response) {
	p.mu.Lock()
	ahead := p.ahead
	p.mu.Unlock()
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil && ahead != 0 {
		resp.Header.Set("Date", date.Add(ahead).UTC().Format(http.TimeFormat))
	}
}

// Watches is how many watches of the resource are open through the proxy.
func (p *Proxy) Watches(resource string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for s := range p.streams {
		if resource == "" || s.resource == resource {
			n++
		}
	}
	return n
}

// Close stops the proxy and breaks what goes through it.
func (p *Proxy) Close() {
	p.Down() // before Close, which waits for open requests
	p.server.Close()
}

func (p *Proxy) change(resource string, edit func(*fault)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.faults[resource]
	edit(&f)
	p.faults[resource] = f
	close(p.changed)
	p.changed = make(chan struct{})
}

// fault returns what happens to a resource now, and a channel that is closed
// when that may have changed.
func (p *Proxy) fault(resource string) (fault, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, all := p.faults[resource], p.faults[""]
	return fault{
		held:    f.held || all.held,
		refused: f.refused || all.refused,
		delay:   max(f.delay, all.delay),
	}, p.changed
}

// gate refuses what must not reach the server.
func (p *Proxy) gate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		down := p.down
		p.mu.Unlock()
		if down {
			panic(http.ErrAbortHandler)
		}
		if resource, ok := watched(r); ok {
			if f, _ := p.fault(resource); f.refused {
				http.Error(w, "watch refused by the test", http.StatusServiceUnavailable)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// wrapWatch puts a stream between the server's events and the client, and sets
// the clock of every answer.
func (p *Proxy) wrapWatch(resp *http.Response) error {
	p.shiftDate(resp)
	resource, ok := watched(resp.Request)
	if !ok || resp.StatusCode != http.StatusOK {
		return nil
	}
	ctx, cancel := context.WithCancelCause(resp.Request.Context())
	s := &stream{
		resource: resource,
		body:     resp.Body,
		ctx:      ctx,
		finish:   cancel,
		fault:    func() (fault, <-chan struct{}) { return p.fault(resource) },
		arrived:  make(chan struct{}, 1),
	}
	s.forget = func() {
		cancel(nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.streams, s)
	}
	p.mu.Lock()
	p.streams[s] = struct{}{}
	down := p.down
	p.mu.Unlock()
	if down { // Down came between gate and here, and has not seen this stream
		s.finish(errCut)
	}
	go s.pump()
	resp.Body = s
	return nil
}

// watched tells whether a request is a watch, and of which resource. Both
// /api/v1/... and /apis/<group>/<version>/... may have namespaces/<name> before
// the resource.
func watched(r *http.Request) (resource string, ok bool) {
	if w := r.URL.Query().Get("watch"); w != "true" && w != "1" {
		return "", false
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	skip := 2 // api, v1
	if parts[0] == "apis" {
		skip = 3
	}
	if len(parts) >= skip+3 && parts[skip] == "namespaces" {
		skip += 2
	}
	if len(parts) <= skip {
		return "", false
	}
	return parts[skip], true
}
