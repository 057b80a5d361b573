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
	run   func(ctx context.Context, s session) error
}

// session is what one command runs with.
type session struct {
	known []any               // settings of all roles
	roles map[string][]string // that there are, and their parts
	bus   *bus.Bus
	args  []string
	out   io.Writer
}

var commands = []command{
	{[]string{"status"}, "[-o json]", "members, partitions, backlog, freshness", status},
	{[]string{"explain"}, "KIND KEY [-n 5] [-o json]", "why an object is as it is, and what its key waits for", explain},
	{[]string{"evictions"}, "[-role ROLE] [-node NODE] [-n 100] [-o json]", "what is still to be evicted or deleted, when, why, and what it waits for", evictions},
	{[]string{"pause"}, "[evictions|ROLE]", "says what is paused, or pauses evictions or a role", pause},
	{[]string{"resume"}, "evictions|ROLE", "ends a pause", resume},
	{[]string{"mode"}, "[ROLE[/PART] [off|shadow|active|default]]", "says or sets whether a role writes, or a part of it", mode},
	{[]string{"shadow"}, "ROLE [-o json]", "what a role in shadow mode would have made differently", shadow},
	{[]string{"bus", "reset"}, "--yes", "deletes and recreates the streams; every role replays", reset},
}

// Usage returns a line for each command.
func Usage() []string {
	var lines []string
	for _, c := range commands {
		lines = append(lines, fmt.Sprintf("%-45s %s", strings.Join(c.words, " ")+" "+c.args, c.says))
	}
	return lines
}

// Run runs the command that name and args spell; ok is false if there is none.
// roles are the controllers that there are, each with its parts.
func Run(roles map[string][]string, name string, args []string, out, complaints io.Writer, known ...any) (code int, ok bool) {
	for _, c := range commands {
		if rest, match := c.match(append([]string{name}, args...)); match {
			return c.start(roles, rest, out, complaints, known), true
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

func (c command) start(roles map[string][]string, args []string, out, complaints io.Writer, known []any) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // a command is where contexts begin
	defer stop()
	err := c.connected(ctx, roles, args, out, known)
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

func (c command) connected(ctx context.Context, roles map[string][]string, args []string, out io.Writer, known []any) error {
	var cfg Config
	if err := process.Load(process.Prefix, &cfg, known...); err != nil {
		return err
	}
	if c.withoutBus() {
		return c.run(ctx, session{known: known, roles: roles, args: args, out: out})
	}
	b, err := bus.Connect(ctx, cfg.Bus, "operator", slog.New(slog.DiscardHandler), nil)
	if err != nil {
		return fmt.Errorf("%w: %w", process.ErrConfig, err)
	}
	defer b.Close()
	if err := awaitConnected(ctx, b); err != nil {
		return fmt.Errorf("connecting to NATS at %s: %w", process.Redact(cfg.Bus.URL), err)
	}
	return c.run(ctx, session{known: known, roles: roles, bus: b, args: args, out: out})
}

// withoutBus reports whether the command needs the API server alone.
func (c command) withoutBus() bool { return c.words[0] == "pause" || c.words[0] == "resume" }

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

// flags reads a command's arguments; flags may stand before or after the words,
// of which there must be as many as are named.
func flags(name string, args []string, define func(*flag.FlagSet), words ...string) ([]string, error) {
	fs := flag.NewFlagSet(name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	if define != nil {
		define(fs)
	}
	var got []string
	for {
		if err := fs.Parse(args); err != nil {
			return nil, fmt.Errorf("%w: %w", errUsage, err)
		}
		if fs.NArg() == 0 {
			break
		}
		got, args = append(got, fs.Arg(0)), fs.Args()[1:]
	}
	switch {
	case len(got) > len(words):
		return nil, fmt.Errorf("%w: %q is not expected", errUsage, got[len(words)])
	case len(got) < len(words):
		return nil, fmt.Errorf("%w: %s is missing", errUsage, words[len(got)])
	}
	return got, nil
}

func outputFlag(fs *flag.FlagSet, format *string) { fs.StringVar(format, "o", "table", "") }

// print writes what a command found, as a person or a program reads it.
func (s session) print(format string, found any, table func(w io.Writer) error) error {
	switch format {
	case "json":
		e := json.NewEncoder(s.out)
		e.SetIndent("", "  ")
		return e.Encode(found)
	case "table":
		return table(s.out)
	default:
		return fmt.Errorf("%w: -o is %q; it must be table or json", errUsage, format)
	}
}

func status(ctx context.Context, s session) error {
	format := ""
	if _, err := flags("status", s.args, func(fs *flag.FlagSet) { outputFlag(fs, &format) }); err != nil {
		return err
	}
	found, err := Gather(ctx, s.bus)
	if err != nil {
		return err
	}
	return s.print(format, found, func(w io.Writer) error { return Render(w, found) })
}

func reset(ctx context.Context, s session) error {
	b := s.bus
	yes := false
	if _, err := flags("bus reset", s.args, func(fs *flag.FlagSet) { fs.BoolVar(&yes, "yes", false, "") }); err != nil {
		return err
	}
	if !yes {
		return fmt.Errorf("%w: this deletes every stream of cluster %s and lets all roles replay; say --yes", errUsage, b.Cluster())
	}
	if err := b.Reset(ctx); err != nil {
		return fmt.Errorf("resetting the bus: %w", err)
	}
	fmt.Fprintf(s.out, "the bus of cluster %s was rebuilt with %d partitions; the watcher fills it again\n", b.Cluster(), b.Partitions())
	return nil
}
