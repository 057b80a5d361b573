// Command devcluster is a Kubernetes API server and its etcd in one process,
// for tests, demos and measurements on one machine.
//
// It is upstream's own kube-apiserver, compiled from its Go modules, so that
// what passes against it passes against the real thing. It refuses to be more
// than that: no kubelet, no scheduler, no controllers, no image to pull, and
// nothing that should ever hold data worth keeping.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// stopAPIServerWithin and stopEtcdWithin bound a stop; together they keep it
// under 5 s. Both are far above what an idle server needs (measured: 0.3 s), and
// nothing is lost when they are exceeded: a killed devcluster starts again too.
const (
	stopAPIServerWithin = 3 * time.Second
	stopEtcdWithin      = 1500 * time.Millisecond
)

// options are the command line.
type options struct {
	Dir        string   // everything the cluster keeps, absolute
	Listen     string   // address both servers bind
	Host       string   // name or address in the kubeconfigs
	SecurePort int      // 0: the one used last in Dir, else a free one
	EtcdPort   int      // as above
	Durable    bool     // fsync on
	RBACFiles  []string // applied after the built-in ones
	ServerArgs []string // handed to kube-apiserver, after ours
}

// ready is the line printed on stdout once the cluster serves.
type ready struct {
	Server string `json:"server"` // https URL of the API server
	Dir    string `json:"dir"`    // where the kubeconfigs are
	Etcd   string `json:"etcd"`   // http URL, gRPC
	Admin  string `json:"admin"`  // http URL; POST /compact
}

func main() {
	opts, err := parse(os.Args[1:])
	if err != nil {
		if errors.Is(err, flag.ErrHelp) {
			os.Exit(0)
		}
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, opts, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "devcluster:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("devcluster", flag.ContinueOnError)
	fs.Usage = func() {
		fmt.Fprint(fs.Output(), "usage: devcluster --dir DIR [flags] [-- kube-apiserver flags]\n\n")
		fs.PrintDefaults()
	}
	fs.StringVar(&o.Dir, "dir", "", "state directory, made when missing; a second start on it continues the cluster, on the same ports")
	fs.StringVar(&o.Listen, "listen", "127.0.0.1", "IP address to bind")
	fs.StringVar(&o.Host, "host", "127.0.0.1", "host written into the kubeconfigs and the serving certificate")
	fs.IntVar(&o.SecurePort, "secure-port", 0, "port of the API server; 0: the last one used in --dir, else any")
	fs.IntVar(&o.EtcdPort, "etcd-port", 0, "port of etcd; 0: as above")
	fs.BoolVar(&o.Durable, "durable", false, "fsync etcd; without it the data survives SIGKILL but not a power cut")
	fs.Func("rbac-file", "YAML file of RBAC objects applied before the cluster is called ready; may be repeated", func(s string) error {
		o.RBACFiles = append(o.RBACFiles, s)
		return nil
	})
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	o.ServerArgs = fs.Args()
	if o.Dir == "" {
		return o, errors.New("--dir is missing")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return o, fmt.Errorf("resolving --dir: %w", err)
	}
	o.Dir = dir
	return o, nil
}

// run serves until ctx ends. The order of stopping is the reverse of starting,
// and each part is awaited: an API server that outlives its etcd spends its last
// seconds retrying.
func run(ctx context.Context, o options, out io.Writer) error {
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("making state directory: %w", err)
	}
	logs, err := os.OpenFile(filepath.Join(o.Dir, "apiserver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("opening log: %w", err)
	}
	defer logs.Close()

	creds, err := loadCredentials(o.Dir, o.Host)
	if err != nil {
		return err
	}
	store, err := startEtcd(ctx, o)
	if err != nil {
		return err
	}
	defer store.stop(stopEtcdWithin)

	api, err := startAPIServer(o, store.url, creds, logs)
	if err != nil {
		return err
	}
	defer api.stop(stopAPIServerWithin)

	if err := api.waitReady(ctx); err != nil {
		return err
	}
	if err := applyRBAC(ctx, api.adminConfig(), o.RBACFiles); err != nil {
		return err
	}
	if err := writeKubeconfigs(o.Dir, api.url, creds); err != nil {
		return err
	}
	admin, err := startAdmin(store)
	if err != nil {
		return err
	}
	defer admin.Close()

	line := ready{Server: api.url, Dir: o.Dir, Etcd: store.url, Admin: "http://" + admin.Addr}
	if err := json.NewEncoder(out).Encode(line); err != nil {
		return fmt.Errorf("printing the ready line: %w", err)
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-store.err():
		return fmt.Errorf("serving etcd: %w", err)
	case <-api.done:
		return fmt.Errorf("serving the API: %w", api.err)
	}
}
