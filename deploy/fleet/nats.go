package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// NATS is one nats-server process with JetStream on a folder. It keeps its port
// over restarts.
type NATS struct {
	*Process
	// URL is where clients connect.
	URL string
	// MaxPayload is the largest message, as in the server's configuration; a
	// change counts from the next Restart.
	MaxPayload string

	binary, dir, config string
}

const natsConfig = `# One server for development: JetStream on files, objects up to 4 MiB.
server_name: %q
listen: "%s"
max_payload: %s
ports_file_dir: %q
jetstream { store_dir: %q }
`

// startNATS starts a server on a port of its own choice.
func startNATS(ctx context.Context, binary, dir, maxPayload string) (*NATS, error) {
	n := &NATS{
		MaxPayload: cmp.Or(maxPayload, "4MB"),
		binary:     binary, dir: dir, config: filepath.Join(dir, "nats.conf"),
	}
	if err := n.run(ctx, "127.0.0.1:-1"); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *NATS) run(ctx context.Context, listen string) error {
	text := fmt.Sprintf(natsConfig, "nats", listen, n.MaxPayload, n.dir, n.store())
	if err := os.WriteFile(n.config, []byte(text), 0o600); err != nil {
		return fmt.Errorf("writing configuration of NATS: %w", err)
	}
	p, err := start(n.dir, "nats", n.binary, []string{"-c", n.config}, os.Environ())
	if err != nil {
		return err
	}
	n.Process = p
	return n.awaitPorts(ctx)
}

// awaitPorts waits for the file in which a ready server tells its ports.
func (n *NATS) awaitPorts(ctx context.Context) error {
	file := filepath.Join(n.dir, fmt.Sprintf("%s_%d.ports", filepath.Base(n.binary), n.Pid()))
	for {
		var ports struct {
			NATS []string `json:"nats"`
		}
		if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, &ports) == nil && len(ports.NATS) > 0 {
			n.URL = ports.NATS[0]
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-n.done:
			return fmt.Errorf("starting NATS: %w; see %s", n.err, n.Log)
		case <-ctx.Done():
			return fmt.Errorf("starting NATS: %w; see %s", ctx.Err(), n.Log)
		}
	}
}

func (n *NATS) store() string { return filepath.Join(n.dir, "jetstream") }

// Restart starts it again on its port and store, after Kill or Stop.
func (n *NATS) Restart(ctx context.Context) error {
	return n.run(ctx, strings.TrimPrefix(n.URL, "nats://"))
}

// Wipe removes what it stored; call it between Kill and Restart.
func (n *NATS) Wipe() error {
	if err := os.RemoveAll(n.store()); err != nil {
		return fmt.Errorf("wiping NATS: %w", err)
	}
	return nil
}
