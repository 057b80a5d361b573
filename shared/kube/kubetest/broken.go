package kubetest

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
)

var customResources = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

var apiServices = schema.GroupVersionResource{
	Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
}

// BrokenKind makes a kind that discovery shows and nobody can list or watch: its
// one object is stored in another version, and the webhook that should convert
// it is dead. It returns once listing fails. repair mends the kind, and returns
// once listing works; the object then appears.
func (c *Cluster) BrokenKind(ctx context.Context) (gvr schema.GroupVersionResource, repair func(context.Context) error, err error) {
	client, err := dynamic.NewForConfig(c.Admin())
	if err != nil {
		return gvr, nil, fmt.Errorf("making a client: %w", err)
	}
	group := "broken-" + rand.String(8) + ".example.com"
	stored := schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"}
	gvr = stored.GroupResource().WithVersion("v2")

	definition := brokenDefinition(group)
	if _, err := client.Resource(customResources).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return gvr, nil, fmt.Errorf("creating the broken kind: %w", err)
	}
	if err := storeWidget(ctx, client, stored); err != nil {
		return gvr, nil, err
	}
	if err := awaitList(ctx, client, gvr, false); err != nil {
		return gvr, nil, fmt.Errorf("waiting until the kind is broken: %w", err)
	}
	return gvr, func(ctx context.Context) error {
		const none = `{"spec":{"conversion":{"strategy":"None","webhook":null}}}`
		_, err := client.Resource(customResources).
			Patch(ctx, definition.GetName(), types.MergePatchType, []byte(none), metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("repairing the broken kind: %w", err)
		}
		if err := awaitList(ctx, client, gvr, true); err != nil {
			return fmt.Errorf("waiting until the kind is repaired: %w", err)
		}
		return nil
	}, nil
}

// BrokenDiscovery announces an API group whose server does not exist, so that
// reading what the cluster serves comes back incomplete and with an error. It
// returns once that is so; repair takes the group away again.
func (c *Cluster) BrokenDiscovery(ctx context.Context) (group string, repair func(context.Context) error, err error) {
	client, err := dynamic.NewForConfig(c.Admin())
	if err != nil {
		return "", nil, fmt.Errorf("making a client: %w", err)
	}
	group = "absent-" + rand.String(8) + ".example.com"
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiServices.GroupVersion().String(),
		"kind":       "APIService",
		"metadata":   map[string]any{"name": "v1." + group},
		"spec": map[string]any{
			"group": group, "version": "v1",
			"groupPriorityMinimum": int64(1000), "versionPriority": int64(10),
			"service":               map[string]any{"namespace": "default", "name": "absent"},
			"insecureSkipTLSVerify": true,
		},
	}}
	if _, err := client.Resource(apiServices).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return "", nil, fmt.Errorf("announcing the absent group: %w", err)
	}
	if err := c.awaitDiscovery(ctx, false); err != nil {
		return "", nil, fmt.Errorf("waiting until discovery is broken: %w", err)
	}
	return group, func(ctx context.Context) error {
		if err := client.Resource(apiServices).Delete(ctx, service.GetName(), metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("taking the absent group away: %w", err)
		}
		if err := c.awaitDiscovery(ctx, true); err != nil {
			return fmt.Errorf("waiting until discovery is repaired: %w", err)
		}
		return nil
	}, nil
}

// awaitDiscovery waits until discovery is complete, or is not.
func (c *Cluster) awaitDiscovery(ctx context.Context, complete bool) error {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	client := c.Client().Discovery()
	return wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		_, _, err := client.ServerGroupsAndResources()
		if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
			return false, err
		}
		return (err == nil) == complete, nil
	})
}

// brokenDefinition has v1 stored, v2 served as well, and a webhook at port 1,
// where nothing listens.
func brokenDefinition(group string) *unstructured.Unstructured {
	version := func(name string, storage bool) any {
		return map[string]any{
			"name": name, "served": true, "storage": storage,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
		}
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": customResources.GroupVersion().String(),
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "widgets." + group},
		"spec": map[string]any{
			"group":    group,
			"scope":    "Namespaced",
			"names":    map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{version("v1", true), version("v2", false)},
			"conversion": map[string]any{
				"strategy": "Webhook",
				"webhook": map[string]any{
					"conversionReviewVersions": []any{"v1"},
					"clientConfig":             map[string]any{"url": "https://127.0.0.1:1/convert"},
				},
			},
		},
	}}
}

// storeWidget makes the one object, in the version it is stored in, which needs
// no conversion. A new kind is served a moment after it was made.
func storeWidget(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": gvr.GroupVersion().String(),
		"kind":       "Widget",
		"metadata":   map[string]any{"name": "widget"},
	}}
	var last error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, last = client.Resource(gvr).Namespace(metav1.NamespaceDefault).Create(ctx, widget, metav1.CreateOptions{})
		return last == nil || apierrors.IsAlreadyExists(last), nil
	})
	if err != nil {
		return fmt.Errorf("creating an object of the broken kind: %w (last: %w)", err, last)
	}
	return nil
}

// awaitList waits until listing works, or fails for the conversion's sake: a
// kind that is not served yet does not count as broken.
func awaitList(ctx context.Context, client dynamic.Interface, gvr schema.GroupVersionResource, works bool) error {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, last = client.Resource(gvr).List(ctx, metav1.ListOptions{})
		if works {
			return last == nil, nil
		}
		return last != nil && !apierrors.IsNotFound(last), nil
	})
	if err != nil {
		return fmt.Errorf("listing %s: %w (last: %w)", gvr.Resource, err, last)
	}
	return nil
}
