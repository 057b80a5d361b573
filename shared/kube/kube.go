// Package kube is all of the API server: connections, one list and watch per
// kind, live reads, writes with preconditions, and errors sorted once.
//
// It refuses three things. It never sends an update or delete without the UID
// and the resourceVersion it was decided on. It never PUTs anything but
// Endpoints and EndpointSlices, because every other object we hold is projected
// and a PUT would erase what was left out; the transport refuses it whoever
// asks. And it never repeats a write by itself: client-go's silent retries are
// switched off for writes, and a Guard is asked again when the request is about
// to leave, after any wait for the rate limiter.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
)

// Config says how to reach the API server. The zero value means the defaults.
type Config struct {
	// Kubeconfig is a path, or several separated by colons as kubectl takes
	// them. Empty: the service account of the pod we run in. Also read as plain
	// KUBECONFIG.
	Kubeconfig string `envconfig:"KUBECONFIG"`

	// Namespace is where millrace is installed; its ConfigMap millrace can pause
	// it. Also read as plain POD_NAMESPACE. Default: the pod's own; outside of a
	// pod millrace.
	Namespace string `envconfig:"POD_NAMESPACE"`

	// QPS and Burst limit the requests of one replica; watches are not counted.
	// Negative QPS: no limit. Units: requests per second, requests. Defaults:
	// kube-controller-manager v1.37, --kube-api-qps and --kube-api-burst.
	QPS   float32 `default:"20"`
	Burst int     `default:"30"`

	// RequestTimeout bounds one read or write of ours; watches and lists of a
	// whole kind are bounded by silence instead. Unit: Go duration. Default:
	// ours.
	RequestTimeout time.Duration `split_words:"true" default:"10s"`

	// ReadIdle is the silence on a connection after which it is pinged, and
	// PingTimeout how long the answer may take before the connection is given
	// up. Whole seconds. Defaults: ours; client-go's 30 s and 15 s would let a
	// dead server look alive for longer than a destructive act may be stale, and
	// where no node beats an answered ping is the only proof that a beat would
	// have been heard.
	ReadIdle    time.Duration `split_words:"true" default:"1s"`
	PingTimeout time.Duration `split_words:"true" default:"3s"`
}

// Validate reports the first setting that cannot work.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.QPS > 0 && c.Burst < 1:
		return fmt.Errorf("burst is %d; with a QPS of %g it must be at least 1", c.Burst, c.QPS)
	case c.RequestTimeout < time.Second:
		return fmt.Errorf("request timeout is %s; it must be at least 1s", c.RequestTimeout)
	case c.ReadIdle < time.Second || c.ReadIdle%time.Second != 0:
		return fmt.Errorf("read idle is %s; it must be whole seconds, at least 1s", c.ReadIdle)
	case c.PingTimeout < time.Second || c.PingTimeout%time.Second != 0:
		return fmt.Errorf("ping timeout is %s; it must be whole seconds, at least 1s", c.PingTimeout)
	}
	return readable(c.Kubeconfig)
}

// readable looks for the files of a kubeconfig; as for kubectl one of several is
// enough. client-go would say of none that KUBERNETES_MASTER should be set.
func readable(paths string) (err error) {
	for _, path := range filepath.SplitList(paths) {
		if _, err = os.Stat(path); err == nil {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("kubeconfig cannot be read: %w", err)
	}
	return nil
}

// withDefaults fills what is zero, so that a Config literal needs no envconfig.
func (c Config) withDefaults() Config {
	if c.QPS == 0 {
		c.QPS = 20
	}
	if c.Burst == 0 {
		c.Burst = 30
	}
	if c.RequestTimeout == 0 {
		c.RequestTimeout = 10 * time.Second
	}
	if c.ReadIdle == 0 {
		c.ReadIdle = time.Second
	}
	if c.PingTimeout == 0 {
		c.PingTimeout = 3 * time.Second
	}
	return c
}

// API is one process's way to the API server. It is safe for concurrent use and
// needs no closing.
type API struct {
	cfg    Config
	log    *slog.Logger
	rest   *rest.Config
	client *kubernetes.Clientset
	meta   metadata.Interface
	urgent metadata.Interface    // waits for no rate limiter
	checks *kubernetes.Clientset // nor does this; for LiveBeat and Lacks
	disco  *discovery.DiscoveryClient
	kinds  *resolver
	clock  *serverClock

	forbidden chan struct{} // holds one after an answer 403
}

// Connect prepares clients; it sends nothing, so it succeeds while the API
// server is down. userAgent is also the field manager of writes that name none.
// Client metrics are registered in reg under upstream's names; only the first
// registry of a process gets them, because client-go has one set of hooks.
func Connect(cfg Config, userAgent string, log *slog.Logger, reg prometheus.Registerer) (*API, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("reading the API server's configuration: %w", err)
	}
	cfg = cfg.withDefaults()
	conf, err := load(cfg.Kubeconfig)
	if err != nil {
		return nil, err
	}
	return connect(cfg, conf, userAgent, log, reg)
}

// ConnectTo is Connect for a server that the caller describes itself; the
// Kubeconfig of cfg is not read. conf is copied.
func ConnectTo(conf *rest.Config, cfg Config, userAgent string, log *slog.Logger, reg prometheus.Registerer) (*API, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("reading the API server's configuration: %w", err)
	}
	return connect(cfg.withDefaults(), rest.CopyConfig(conf), userAgent, log, reg)
}

func connect(cfg Config, conf *rest.Config, userAgent string, log *slog.Logger, reg prometheus.Registerer) (*API, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	registerClientMetrics(reg)
	if err := setHTTP2Health(cfg); err != nil {
		return nil, err
	}

	conf.UserAgent = userAgent
	conf.ContentType = "application/vnd.kubernetes.protobuf"
	conf.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	conf.Timeout = 0 // it would end watches too
	conf.QPS, conf.Burst = cfg.QPS, cfg.Burst
	if cfg.QPS > 0 { // one limiter for all clients of the process
		conf.RateLimiter = tracedLimiter{flowcontrol.NewTokenBucketRateLimiter(cfg.QPS, cfg.Burst)}
	}
	clock, forbidden := &serverClock{}, make(chan struct{}, 1)
	conf.Dial = dialHeard(conf.Dial)
	conf.Wrap(newSender(clock, forbidden))

	a := &API{cfg: cfg, log: log, rest: conf, clock: clock, forbidden: forbidden}
	httpClient, err := rest.HTTPClientFor(conf)
	if err != nil {
		return nil, fmt.Errorf("preparing the API server's transport: %w", err)
	}
	if a.client, err = kubernetes.NewForConfigAndClient(conf, httpClient); err != nil {
		return nil, fmt.Errorf("preparing the API server's client: %w", err)
	}
	if a.meta, err = metadata.NewForConfigAndClient(conf, httpClient); err != nil {
		return nil, fmt.Errorf("preparing the metadata client: %w", err)
	}
	unlimited := rest.CopyConfig(conf)
	unlimited.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	if a.urgent, err = metadata.NewForConfigAndClient(unlimited, httpClient); err != nil {
		return nil, fmt.Errorf("preparing the urgent client: %w", err)
	}
	if a.checks, err = kubernetes.NewForConfigAndClient(unlimited, httpClient); err != nil {
		return nil, fmt.Errorf("preparing the client of live checks: %w", err)
	}
	if a.disco, err = discovery.NewDiscoveryClientForConfigAndClient(jsonConfig(conf), httpClient); err != nil {
		return nil, fmt.Errorf("preparing the discovery client: %w", err)
	}
	a.kinds = &resolver{disco: a.disco}
	return a, nil
}

// jsonConfig leaves the choice of encoding to client-go: aggregated discovery
// has none but JSON.
func jsonConfig(conf *rest.Config) *rest.Config {
	c := rest.CopyConfig(conf)
	c.ContentType, c.AcceptContentTypes = "", ""
	return c
}

// load reads a kubeconfig, or the service account of the pod.
func load(paths string) (*rest.Config, error) {
	if paths == "" {
		conf, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("finding the API server: KUBECONFIG is empty and this is no pod: %w", err)
		}
		return conf, nil
	}
	rules := &clientcmd.ClientConfigLoadingRules{Precedence: filepath.SplitList(paths)}
	conf, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading kubeconfig %s: %w", paths, err)
	}
	return conf, nil
}

// setHTTP2Health passes the timeouts to client-go's transport. The environment
// is the only way in: the transport is built inside client-go, and one built
// outside would lose reloading of certificates, tokens and CAs. What an operator
// has set himself stays.
func setHTTP2Health(cfg Config) error {
	for name, d := range map[string]time.Duration{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": cfg.ReadIdle,
		"HTTP2_PING_TIMEOUT_SECONDS":      cfg.PingTimeout,
	} {
		if os.Getenv(name) != "" {
			continue
		}
		if err := os.Setenv(name, strconv.Itoa(int(d/time.Second))); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}

// RedirectLogs sends what client-go says through klog to log. Only the first
// call of a process counts: klog is global and not safe to redirect later.
func RedirectLogs(log *slog.Logger) { redirectOnce.Do(func() { klog.SetSlogLogger(log) }) }

var redirectOnce sync.Once

// Client returns the typed client. Its writes carry no preconditions unless the
// caller puts them in; its PUTs are refused but for Endpoints and
// EndpointSlices.
func (a *API) Client() kubernetes.Interface { return a.client }

// Metadata returns the client for PartialObjectMetadata.
func (a *API) Metadata() metadata.Interface { return a.meta }

// Discovery returns the client for what the server serves.
func (a *API) Discovery() discovery.DiscoveryInterface { return a.disco }

// Rest returns a copy of the configuration that all clients here were made
// from, with the transport's refusals.
func (a *API) Rest() *rest.Config { return rest.CopyConfig(a.rest) }

// Ping asks for the server's readiness; nil means it answers and is ready.
func (a *API) Ping(ctx context.Context) error {
	return a.readyz(ctx, a.disco.RESTClient())
}

// Answers asks the server, and nobody in between, for its readiness, which its
// etcd is part of; nil means that it answered and did not say that it has failed.
// Who may not ask is answered too. It waits for no rate limiter.
func (a *API) Answers(ctx context.Context) error {
	err := a.readyz(ctx, a.checks.RESTClient())
	if errors.Is(err, ErrForbidden) || errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func (a *API) readyz(ctx context.Context, client rest.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	if err := client.Get().AbsPath("/readyz").MaxRetries(0).Do(ctx).Error(); err != nil {
		return fmt.Errorf("asking the API server: %w", Sort(err))
	}
	return nil
}

// dialer is net.Dialer.DialContext's shape.
type dialer = func(ctx context.Context, network, address string) (net.Conn, error)
