// Package chart looks at charts/millrace and docker-compose.yaml as an operator's
// tools do: it renders the chart with the pinned helm and reads what comes out. It
// installs nothing.
package chart

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// HelmEnv names the helm to use; without it make is asked for its own.
const HelmEnv = "HELM"

// Namespace and Release are what is rendered for.
const (
	Namespace = "millrace-system"
	Release   = "mr"
)

// Helm runs helm in the folder of charts and returns what it printed. Its error is
// what helm said.
func Helm(ctx context.Context, args ...string) (string, error) {
	root, err := fleet.ModuleRoot()
	if err != nil {
		return "", err
	}
	charts := filepath.Join(root, "charts")
	if err := look(charts); err != nil {
		return "", err
	}
	helm, err := binary(ctx, root)
	if err != nil {
		return "", err
	}
	var out, complaints bytes.Buffer
	cmd := exec.CommandContext(ctx, helm, args...) //nolint:gosec // ours
	cmd.Dir, cmd.Stdout, cmd.Stderr = charts, &out, &complaints
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("running helm %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// Render returns the manifests for values files and settings, as helm takes them.
func Render(ctx context.Context, args ...string) (string, error) {
	return Helm(ctx, append([]string{"template", Release, "millrace", "--namespace", Namespace}, args...)...)
}

// binary is the pinned helm, built by make when it is missing.
func binary(ctx context.Context, root string) (string, error) {
	if path := os.Getenv(HelmEnv); path != "" {
		return path, nil
	}
	cmd := exec.CommandContext(ctx, "make", "-s", "-C", root, "helm")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("building helm: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1], nil
}

// look looks at every file, so that the cache of `go test`, which does not see
// what helm reads, does not repeat an old result.
func look(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil {
			_, err = os.Stat(path)
		}
		return err
	})
}

// Objects are the objects in manifests.
func Objects(manifests string) (out []*unstructured.Unstructured, err error) {
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		var o unstructured.Unstructured
		err := documents.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading manifests: %w", err)
		}
		if len(o.Object) > 0 {
			out = append(out, &o)
		}
	}
}
