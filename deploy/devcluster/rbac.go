package main

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// manifests hold one file per millrace role, named after it: what that role may
// do, and no more. A test that passes here passes with the chart's rights.
//
//go:embed rbac/*.yaml
var manifests embed.FS

// roles are the millrace roles, each with a user and a kubeconfig of its own.
func roles() []string {
	files, err := manifests.ReadDir("rbac")
	if err != nil {
		panic(err) // the embedded folder is there, or this would not compile
	}
	var names []string
	for _, f := range files {
		names = append(names, strings.TrimSuffix(f.Name(), ".yaml"))
	}
	return names
}

// rbacResources are the kinds applied; anything else in a file is an error, for
// a typo would otherwise only show as a Forbidden much later.
var rbacResources = map[string]string{
	"ClusterRole":        "clusterroles",
	"ClusterRoleBinding": "clusterrolebindings",
	"Role":               "roles",
	"RoleBinding":        "rolebindings",
}

// applyRBAC makes the built-in roles and then those in files true.
func applyRBAC(ctx context.Context, cfg *rest.Config, files []string) error {
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	for _, role := range roles() {
		text, err := manifests.ReadFile(path.Join("rbac", role+".yaml"))
		if err != nil {
			return fmt.Errorf("reading the rights of %s: %w", role, err)
		}
		if err := applyManifest(ctx, client, text); err != nil {
			return fmt.Errorf("applying the rights of %s: %w", role, err)
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("reading RBAC file: %w", err)
		}
		if err := applyManifest(ctx, client, text); err != nil {
			return fmt.Errorf("applying %s: %w", file, err)
		}
	}
	if err := applyManifest(ctx, client, settled); err != nil {
		return fmt.Errorf("applying the last rights: %w", err)
	}
	return awaitSettled(ctx, cfg)
}

func applyManifest(ctx context.Context, client dynamic.Interface, text []byte) error {
	docs := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		var obj unstructured.Unstructured
		err := docs.Decode(&obj)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("decoding: %w", err)
		}
		if len(obj.Object) == 0 { // an empty document between two rulers
			continue
		}
		if err := applyObject(ctx, client, &obj); err != nil {
			return err
		}
	}
}

func applyObject(ctx context.Context, client dynamic.Interface, obj *unstructured.Unstructured) error {
	resource, ok := rbacResources[obj.GetKind()]
	if !ok || obj.GroupVersionKind().Group != "rbac.authorization.k8s.io" {
		return fmt.Errorf("%s %s is not an RBAC object", obj.GetKind(), obj.GetName())
	}
	gvr := schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: resource}
	// The server makes its own namespaces a moment after it has become ready.
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := client.Resource(gvr).Namespace(obj.GetNamespace()).
			Apply(ctx, obj.GetName(), obj, metav1.ApplyOptions{FieldManager: "devcluster", Force: true})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("applying %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	return nil
}
