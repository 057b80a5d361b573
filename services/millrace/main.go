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
	"github.com/millrace-io/millrace/services/nodelifecycle"
	"github.com/millrace-io/millrace/services/operator"
	"github.com/millrace-io/millrace/services/podevictor"
	"github.com/millrace-io/millrace/services/standalone"
	"github.com/millrace-io/millrace/services/watcher"
	"github.com/millrace-io/millrace/shared/process"
)

// version is set by the linker.
var version string

// roles are what runs until it is told to stop, the configuration it reads, and its
// parts that have modes of their own.
var roles = map[string]struct {
	run    func(ctx context.Context, env *process.Env) error
	config any
	parts  []string
}{
	"watcher":       {run: watcher.Run, config: &watcher.Config{}},
	"endpoints":     {run: endpoints.Run, config: &endpoints.Config{}},
	"nodelifecycle": {run: nodelifecycle.Run, config: &nodelifecycle.Config{}},
	"podevictor":    {run: podevictor.Run, config: &podevictor.Config{}, parts: podevictor.Parts},
}

// standaloneRole is all of them in one process.
const standaloneRole = "standalone"

// runStandalone wires it: the watcher, and every other role as a controller.
func runStandalone(ctx context.Context, env *process.Env) error {
	var controllers []process.Role
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		if name != "watcher" {
			controllers = append(controllers, process.Role{Name: name, Run: roles[name].run})
		}
	}
	return standalone.With(process.Role{Name: "watcher", Run: roles["watcher"].run}, controllers...)(ctx, env)
}

// configs are what a role reads, or standalone, which reads what all do.
func configs(role string) []any {
	if role != standaloneRole {
		return []any{roles[role].config}
	}
	all := []any{&standalone.Config{}}
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		all = append(all, roles[name].config)
	}
	return all
}

// settings are the configuration structs of all roles and commands: a variable
// with our prefix that none of them reads is refused.
func settings() []any {
	return append(configs(standaloneRole), &process.Settings{}, &operator.Config{})
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, complaints io.Writer) int {
	process.Version = version
	if len(args) == 0 {
		usage(complaints)
		return process.ExitConfig
	}
	name := args[0]
	if run, ok := runner(name); ok && len(args) == 1 {
		for _, config := range configs(name) {
			if code := process.Check(name, config, settings()...); code != process.ExitOK {
				return code
			}
		}
		return process.Main(name, run, settings()...)
	}
	switch name {
	case "version":
		fmt.Fprintln(out, process.VersionString())
		return process.ExitOK
	case "help", "-h", "--help":
		usage(out)
		return process.ExitOK
	case "probe":
		return operator.Probe(args[1:], complaints, settings()...)
	}
	if code, ok := operator.Run(controllers(), name, args[1:], out, complaints, settings()...); ok {
		return code
	}
	fmt.Fprintf(complaints, "millrace: there is no role or command %q with these arguments; see millrace help\n", name)
	return process.ExitConfig
}

func runner(name string) (run func(context.Context, *process.Env) error, ok bool) {
	if name == standaloneRole {
		return runStandalone, true
	}
	role, ok := roles[name]
	return role.run, ok
}

// controllers are the roles that can be paused and switched, with their parts.
func controllers() map[string][]string {
	all := map[string][]string{}
	for name, role := range roles {
		if name != "watcher" {
			all[name] = role.parts
		}
	}
	return all
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "usage: millrace ROLE | millrace COMMAND\n\nroles, configured by MILLRACE_… variables:")
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		fmt.Fprintf(w, "  %s\n", name)
	}
	fmt.Fprintf(w, "  %-22s all of them and NATS in one process\n", standaloneRole)
	fmt.Fprintln(w, "\ncommands:")
	for _, line := range operator.Usage() {
		fmt.Fprintf(w, "  %s\n", line)
	}
	fmt.Fprintf(w, "  %-22s %s\n", "probe [livez|kube]", "for health checks: is the role here ready, does it live, is the API server there")
	fmt.Fprintln(w, "  version                what this binary is\n  help                   this text")
}
