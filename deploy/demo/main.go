// Command demo plays a short story on a whole installation (an API server, NATS,
// one watcher, three replicas of the endpoints role, two each of nodelifecycle and
// podevictor, all as processes on loopback), prints what happened when, and checks every step: it
// exits 0 only when all expectations held. With -standalone, millrace is one process
// that is killed and started again on its folder. DEMO_KEEP=1 leaves the
// installation running.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// limit bounds the whole story. Unit: time. Source: it takes about a minute; the
// first build of the binaries on a slow machine some minutes more.
const limit = 15 * time.Minute

func main() { os.Exit(run()) }

func run() int {
	alone := flag.Bool("standalone", false, "run millrace standalone, in one process, instead of every role by itself")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "millrace-demo-")
	if err != nil {
		return fail(err)
	}
	line := newTimeline(os.Stdout)
	story, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	line.say("building the binaries and starting an API server")
	f, err := fleet.Start(story, fleet.Options{Dir: dir, Progress: os.Stderr, Standalone: *alone, Env: clocks()})
	if err != nil {
		return fail(err)
	}
	defer end(f)

	s, err := begin(story, f, line, *alone)
	defer s.close()
	if err == nil {
		err = s.play(story)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: %v\nlogs are in %s\n", err, dir)
		return 1
	}
	held := line.table()
	if os.Getenv("DEMO_KEEP") == "1" {
		keep(ctx, f)
	}
	if !held {
		fmt.Fprintf(os.Stderr, "demo: an expectation did not hold; logs are in %s\n", dir)
		return 1
	}
	s.close() // not before: nodes fall silent with their kubelet
	end(f)
	_ = os.RemoveAll(dir) // a temporary folder; the system clears what is left
	return 0
}

func fail(err error) int {
	fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	return 1
}

// end stops what still runs; it may be called twice.
func end(f *fleet.Fleet) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := f.Stop(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "demo: stopping: %v\n", err)
	}
}

// keep says how to look at the installation and waits for ^C.
func keep(ctx context.Context, f *fleet.Fleet) {
	fmt.Printf(`
It keeps running until you press ^C. In another shell:

  export KUBECONFIG=%s
  kubectl get endpointslices -n %s -w
  kubectl label pod web-1 -n %s app=other --overwrite
  kubectl get nodes -o custom-columns=NAME:.metadata.name,TAINTS:.spec.taints[*].key -w
  kubectl taint node node-0001 example.com/drain=:NoExecute
  MILLRACE_NATS_URL=%s %s status
  MILLRACE_NATS_URL=%s %s evictions
  MILLRACE_NATS_URL=%s %s explain node node-0000
`, f.Cluster.Kubeconfig("admin"), namespace, namespace, f.URL(), f.Binary(), f.URL(), f.Binary(), f.URL(), f.Binary())
	<-ctx.Done()
}
