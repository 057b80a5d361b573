package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	apioptions "k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// readyWithin bounds the start. It takes 4 s on two idle cores; a machine that
// needs a minute has other problems.
const readyWithin = 60 * time.Second

// apiServer is the running kube-apiserver.
type apiServer struct {
	url    string
	creds  *credentials
	cancel context.CancelFunc
	done   chan struct{}
	err    error // why it ended; read after done
}

// serverArgs are the flags under which kube-apiserver runs here; extra ones
// come last and win.
func serverArgs(o options, etcdURL string, c *credentials) []string {
	args := []string{
		"--etcd-servers=" + etcdURL,
		// Only POST /compact forgets history, so that a test decides when.
		"--etcd-compaction-interval=0",
		"--tls-cert-file=" + c.Cert,
		"--tls-private-key-file=" + c.Key,
		"--token-auth-file=" + c.Tokens,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.SAKey,
		"--service-account-signing-key-file=" + c.SAKey,
		"--authorization-mode=RBAC",
		// Nobody makes the `default` account when no controller manager runs, and
		// without it this plugin would refuse every pod.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
		"--service-cluster-ip-range=172.30.0.0/16",
		// A documentation address (RFC 5737): endpoints may not be loopback, and
		// the machine's own would make runs differ.
		"--advertise-address=192.0.2.1",
		// Watches are ended on stop at once; the default leaves them open and
		// waits a minute.
		"--shutdown-delay-duration=0s",
		"--shutdown-watch-termination-grace-period=1s",
	}
	return append(args, o.ServerArgs...)
}

// startAPIServer starts kube-apiserver in this process, logging to logs.
func startAPIServer(o options, etcdURL string, c *credentials, logs *os.File) (*apiServer, error) {
	s := apioptions.NewServerRunOptions()
	fs := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	for _, set := range s.Flags().FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse(serverArgs(o, etcdURL, c)); err != nil {
		return nil, fmt.Errorf("reading kube-apiserver flags: %w", err)
	}
	registry := s.GenericServerRunOptions.ComponentGlobalsRegistry
	if err := registry.Set(); err != nil {
		return nil, fmt.Errorf("setting feature gates: %w", err)
	}
	gate := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logTo(logs, s, gate); err != nil {
		return nil, err
	}

	l, err := listen(o.Dir, "apiserver", o.Listen, o.SecurePort)
	if err != nil {
		return nil, err
	}
	s.SecureServing.Listener = l
	s.SecureServing.BindPort = portOf(l)
	s.SecureServing.BindAddress = l.Addr().(*net.TCPAddr).IP

	ctx, cancel := context.WithCancel(context.Background())
	completed, err := s.Complete(ctx)
	if err == nil {
		err = utilerrors.NewAggregate(completed.Validate())
	}
	if err != nil {
		cancel()
		l.Close()
		return nil, fmt.Errorf("completing kube-apiserver options: %w", err)
	}

	api := &apiServer{
		url:    "https://" + net.JoinHostPort(o.Host, strconv.Itoa(portOf(l))),
		creds:  c,
		cancel: cancel,
		done:   make(chan struct{}),
	}
	go func() {
		defer close(api.done)
		api.err = app.Run(ctx, completed)
	}()
	return api, nil
}

// logTo sends the server's log to a file: on the terminal it would bury the one
// line a reader waits for.
func logTo(logs *os.File, s *apioptions.ServerRunOptions, gate featuregate.FeatureGate) error {
	klog.LogToStderr(false)
	klog.SetOutput(logs)
	streams := &logsapi.LoggingOptions{ErrorStream: logs, InfoStream: logs}
	if err := logsapi.ValidateAndApplyWithOptions(s.Logs, streams, gate); err != nil {
		return fmt.Errorf("configuring the log: %w", err)
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	return nil
}

// adminConfig reaches the server as a member of system:masters, without a limit
// on the client's side.
func (a *apiServer) adminConfig() *rest.Config {
	return &rest.Config{
		Host:            a.url,
		BearerToken:     a.creds.Admin.Token,
		TLSClientConfig: rest.TLSClientConfig{CAData: a.creds.CA},
		QPS:             -1,
	}
}

// waitReady returns when /readyz passes, which includes upstream's own roles
// and the default namespace.
func (a *apiServer) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	client, err := kubernetes.NewForConfig(a.adminConfig())
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = a.probe(ctx, client); last == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-a.done:
			return fmt.Errorf("starting kube-apiserver (see apiserver.log): %w", errors.Join(a.err, last))
		case <-ctx.Done():
			return fmt.Errorf("waiting for kube-apiserver (see apiserver.log): %w", errors.Join(ctx.Err(), last))
		}
	}
}

func (a *apiServer) probe(ctx context.Context, client kubernetes.Interface) error {
	// A hung first answer must not use up the whole wait.
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// stop ends the server and waits at most within.
func (a *apiServer) stop(within time.Duration) {
	a.cancel()
	select {
	case <-a.done:
	case <-time.After(within):
	}
}
