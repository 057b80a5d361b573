package operator

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/process"
)

// Config is what the commands read.
type Config struct {
	Bus bus.Config `envconfig:"NATS"`
}

// connectWait is how long a command waits for NATS. Unit: time.
const connectWait = 5 * time.Second

// errUsage: the arguments cannot be understood; the flag set has said why.
var errUsage = errors.New("bad arguments")

// command is one operator's command.
type command struct {
	words []string // "bus", "reset"
	args  string   // for the usage
	says  string
	run   func(ctx context.Context, b *bus.Bus, args []string, out io.Writer) error
}

var commands = []command{
	{[]string{"status"}, "[-o json]", "members, partitions, backlog, freshness", status},
	{[]string{"bus", "reset"}, "--yes", "deletes and recreates the streams; every role replays", reset},
}

// Usage returns a line for each command.
func Usage() []string {
	var lines []string
	for _, c := range commands {
		lines = append(lines, fmt.Sprintf("%-22s %s", strings.Join(c.words, " ")+" "+c.args, c.says))
	}
	return lines
}

// Run runs the command that name and args spell; ok is false if there is none.
func Run(name string, args []string, out, complaints io.Writer, known ...any) (code int, ok bool) {
	for _, c := range commands {
		if rest, match := c.match(append([]string{name}, args...)); match {
			return c.start(rest, out, complaints, known), true
		}
	}
	return 0, false
}

func (c command) match(args []string) (rest []string, ok bool) {
	if len(args) < len(c.words) {
		return nil, false
	}
	for i, w := range c.words {
		if args[i] != w {
			return nil, false
		}
	}
	return args[len(c.words):], true
}

func (c command) start(args []string, out, complaints io.Writer, known []any) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // a command is where contexts begin
	defer stop()
	err := c.connected(ctx, args, out, known)
	switch {
	case err == nil:
		return process.ExitOK
	case errors.Is(err, errUsage), errors.Is(err, process.ErrConfig):
		fmt.Fprintf(complaints, "millrace %s: %v\n", c.words[0], err)
		return process.ExitConfig
	default:
		fmt.Fprintf(complaints, "millrace %s: %v\n", c.words[0], err)
		return process.ExitFailure
	}
}

func (c command) connected(ctx context.Context, args []string, out io.Writer, known []any) error {
	var cfg Config
	if err := process.Load(process.Prefix, &cfg, known...); err != nil {
		return err
	}
	b, err := bus.Connect(ctx, cfg.Bus, "operator", slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return fmt.Errorf("%w: %w", process.ErrConfig, err)
	}
	defer b.Close()
	if err := awaitConnected(ctx, b); err != nil {
		return fmt.Errorf("connecting to NATS at %s: %w", cfg.Bus.URL, err)
	}
	return c.run(ctx, b, args, out)
}

func awaitConnected(ctx context.Context, b *bus.Bus) error {
	ctx, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	changes, stop := b.Changes()
	defer stop()
	for !b.State().Connected {
		select {
		case <-changes:
		case <-ctx.Done():
			return fmt.Errorf("not connected after %s", connectWait)
		}
	}
	return nil
}

func flags(name string, args []string, define func(*flag.FlagSet)) error {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	define(fs)
	if err := fs.Parse(args); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("%w: %q is not expected", errUsage, fs.Arg(0))
	}
	return nil
}

func status(ctx context.Context, b *bus.Bus, args []string, out io.Writer) error {
	format := ""
	if err := flags("status", args, func(fs *flag.FlagSet) { fs.StringVar(&format, "o", "table", "") }); err != nil {
		return err
	}
	s, err := Gather(ctx, b)
	if err != nil {
		return err
	}
	switch format {
	case "json":
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(s)
	case "table":
		return Render(out, s)
	default:
		return fmt.Errorf("%w: -o is %q; it must be table or json", errUsage, format)
	}
}

func reset(ctx context.Context, b *bus.Bus, args []string, out io.Writer) error {
	yes := false
	if err := flags("bus reset", args, func(fs *flag.FlagSet) { fs.BoolVar(&yes, "yes", false, "") }); err != nil {
		return err
	}
	if !yes {
		return fmt.Errorf("%w: this deletes every stream of cluster %s and lets all roles replay; say --yes", errUsage, b.Cluster())
	}
	if err := b.Reset(ctx); err != nil {
		return fmt.Errorf("resetting the bus: %w", err)
	}
	fmt.Fprintf(out, "the bus of cluster %s was rebuilt with %d partitions; the watcher fills it again\n", b.Cluster(), b.Partitions())
	return nil
}
