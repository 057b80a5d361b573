// Command millrace is every role and every operator's command in one binary:
// `millrace watcher`, `millrace endpoints`, `millrace status`. It names the
// roles and wires nothing else.
package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/millrace-io/millrace/services/endpoints"
	"github.com/millrace-io/millrace/services/operator"
	"github.com/millrace-io/millrace/services/watcher"
	"github.com/millrace-io/millrace/shared/process"
)

// version is set by the linker.
var version string

// roles are what runs until it is told to stop, and the configuration it reads.
var roles = map[string]struct {
	run    func(ctx context.Context, env *process.Env) error
	config any
}{
	"watcher":   {watcher.Run, &watcher.Config{}},
	"endpoints": {endpoints.Run, &endpoints.Config{}},
}

// settings are the configuration structs of all roles and commands: a variable
// with our prefix that none of them reads is refused.
func settings() []any {
	return []any{&process.Settings{}, &watcher.Config{}, &endpoints.Config{}, &operator.Config{}}
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, complaints io.Writer) int {
	process.Version = version
	if len(args) == 0 {
		usage(complaints)
		return process.ExitConfig
	}
	name := args[0]
	if role, ok := roles[name]; ok && len(args) == 1 {
		if code := process.Check(name, role.config, settings()...); code != process.ExitOK {
			return code
		}
		return process.Main(name, role.run, settings()...)
	}
	switch name {
	case "version":
		fmt.Fprintln(out, process.VersionString())
		return process.ExitOK
	case "help", "-h", "--help":
		usage(out)
		return process.ExitOK
	}
	if code, ok := operator.Run(name, args[1:], out, complaints, settings()...); ok {
		return code
	}
	fmt.Fprintf(complaints, "millrace: there is no role or command %q with these arguments; see millrace help\n", name)
	return process.ExitConfig
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: millrace ROLE | millrace COMMAND\n\nroles, configured by MILLRACE_… variables:")
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		fmt.Fprintf(w, "  %s\n", name)
	}
	fmt.Fprintln(w, "\ncommands:")
	for _, line := range operator.Usage() {
		fmt.Fprintf(w, "  %s\n", line)
	}
	fmt.Fprintln(w, "  version                what this binary is\n  help                   this text")
}
