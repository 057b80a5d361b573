package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/shared/event"
)

// Kinds that have a typed client here.
const (
	Pods                   event.Kind = "pods"
	Nodes                  event.Kind = "nodes"
	Services               event.Kind = "services"
	Endpoints              event.Kind = "endpoints"
	EndpointSlices         event.Kind = "endpointslices.discovery.k8s.io"
	ResourceQuotas         event.Kind = "resourcequotas"
	PersistentVolumeClaims event.Kind = "persistentvolumeclaims"
	ResourceClaims         event.Kind = "resourceclaims.resource.k8s.io"
	DeviceClasses          event.Kind = "deviceclasses.resource.k8s.io"
	ReplicationControllers event.Kind = "replicationcontrollers"
	Namespaces             event.Kind = "namespaces"
	ConfigMaps             event.Kind = "configmaps"
	Leases                 event.Kind = "leases.coordination.k8s.io"
)

// typedKind is a kind of which we know the Go type.
type typedKind struct {
	gvr     schema.GroupVersionResource
	cluster bool // no namespace
	object  func() runtime.Object
	list    func() runtime.Object
	client  func(kubernetes.Interface) rest.Interface
}

func core(resource string, cluster bool, object, list func() runtime.Object) typedKind {
	return typedKind{
		gvr: corev1.SchemeGroupVersion.WithResource(resource), cluster: cluster, object: object, list: list,
		client: func(c kubernetes.Interface) rest.Interface { return c.CoreV1().RESTClient() },
	}
}

func resourceAPI(resource string, cluster bool, object, list func() runtime.Object) typedKind {
	return typedKind{
		gvr: resourcev1.SchemeGroupVersion.WithResource(resource), cluster: cluster, object: object, list: list,
		client: func(c kubernetes.Interface) rest.Interface { return c.ResourceV1().RESTClient() },
	}
}

// of adapts new for the table.
func of[T any, P interface {
	*T
	runtime.Object
}]() runtime.Object {
	return P(new(T))
}

var typedKinds = map[event.Kind]typedKind{
	Pods:                   core("pods", false, of[corev1.Pod], of[corev1.PodList]),
	Nodes:                  core("nodes", true, of[corev1.Node], of[corev1.NodeList]),
	Services:               core("services", false, of[corev1.Service], of[corev1.ServiceList]),
	Endpoints:              core("endpoints", false, of[corev1.Endpoints], of[corev1.EndpointsList]),
	ResourceQuotas:         core("resourcequotas", false, of[corev1.ResourceQuota], of[corev1.ResourceQuotaList]),
	PersistentVolumeClaims: core("persistentvolumeclaims", false, of[corev1.PersistentVolumeClaim], of[corev1.PersistentVolumeClaimList]),
	ReplicationControllers: core("replicationcontrollers", false, of[corev1.ReplicationController], of[corev1.ReplicationControllerList]),
	Namespaces:             core("namespaces", true, of[corev1.Namespace], of[corev1.NamespaceList]),
	ConfigMaps:             core("configmaps", false, of[corev1.ConfigMap], of[corev1.ConfigMapList]),
	ResourceClaims:         resourceAPI("resourceclaims", false, of[resourcev1.ResourceClaim], of[resourcev1.ResourceClaimList]),
	DeviceClasses:          resourceAPI("deviceclasses", true, of[resourcev1.DeviceClass], of[resourcev1.DeviceClassList]),
	EndpointSlices: {
		gvr:    discoveryv1.SchemeGroupVersion.WithResource("endpointslices"),
		object: of[discoveryv1.EndpointSlice], list: of[discoveryv1.EndpointSliceList],
		client: func(c kubernetes.Interface) rest.Interface { return c.DiscoveryV1().RESTClient() },
	},
	Leases: {
		gvr:    coordinationv1.SchemeGroupVersion.WithResource("leases"),
		object: of[coordinationv1.Lease], list: of[coordinationv1.LeaseList],
		client: func(c kubernetes.Interface) rest.Interface { return c.CoordinationV1().RESTClient() },
	},
}

// errAbsent: the server answered, and does not serve the kind.
var errAbsent = errors.New("the API server does not serve this kind")

// source reads one kind: a typed client, or metadata only.
type source struct {
	kind event.Kind
	gvr  schema.GroupVersionResource
	// example has the type that the source yields.
	example runtime.Object
	list    func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error)
	watch   func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error)
	get     func(ctx context.Context, key event.Key) (runtime.Object, error)
}

// source finds how to read a kind; it asks discovery only for kinds that we have
// no type of.
func (a *API) source(ctx context.Context, kind event.Kind, metadataOnly bool) (source, error) {
	typed, known := typedKinds[kind]
	if known && !metadataOnly {
		return typedSource(kind, typed, typed.client(a.client)), nil
	}
	gvr := typed.gvr
	if !known {
		var err error
		if gvr, err = a.kinds.resolve(ctx, kind); err != nil {
			return source{}, err
		}
	}
	return metadataSource(kind, gvr, a.meta), nil
}

func typedSource(kind event.Kind, t typedKind, c rest.Interface) source {
	resource := t.gvr.Resource
	return source{
		kind: kind, gvr: t.gvr, example: t.object(),
		list: func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error) {
			list := t.list()
			err := c.Get().Namespace(namespace).Resource(resource).VersionedParams(&opts, scheme.ParameterCodec).Do(ctx).Into(list)
			return list, err
		},
		watch: func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
			opts.Watch = true
			r := c.Get().Namespace(namespace).Resource(resource).VersionedParams(&opts, scheme.ParameterCodec)
			if opts.TimeoutSeconds != nil {
				r = r.Timeout(time.Duration(*opts.TimeoutSeconds) * time.Second)
			}
			return r.Watch(ctx)
		},
		get: func(ctx context.Context, key event.Key) (runtime.Object, error) {
			object := t.object()
			err := c.Get().NamespaceIfScoped(key.Namespace, !t.cluster).Resource(resource).Name(key.Name).Do(ctx).Into(object)
			return object, err
		},
	}
}

func metadataSource(kind event.Kind, gvr schema.GroupVersionResource, client metadata.Interface) source {
	c := client.Resource(gvr)
	return source{
		kind: kind, gvr: gvr, example: &metav1.PartialObjectMetadata{},
		list: func(ctx context.Context, namespace string, opts metav1.ListOptions) (runtime.Object, error) {
			return c.Namespace(namespace).List(ctx, opts)
		},
		watch: func(ctx context.Context, namespace string, opts metav1.ListOptions) (watch.Interface, error) {
			return c.Namespace(namespace).Watch(ctx, opts)
		},
		get: func(ctx context.Context, key event.Key) (runtime.Object, error) {
			return c.Namespace(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		},
	}
}

// resolver maps a kind to the version that the server prefers. Answers are kept
// until forgotten.
type resolver struct {
	disco *discovery.DiscoveryClient
	mu    sync.Mutex
	known map[event.Kind]schema.GroupVersionResource
}

// resolve returns errAbsent only if the server's own list of groups and every
// version of the group say so: discovery that fails is no absence.
func (r *resolver) resolve(ctx context.Context, kind event.Kind) (schema.GroupVersionResource, error) {
	r.mu.Lock()
	gvr, ok := r.known[kind]
	r.mu.Unlock()
	if ok {
		return gvr, nil
	}
	gvr, err := r.ask(ctx, kind)
	if err != nil {
		return gvr, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = map[event.Kind]schema.GroupVersionResource{}
	}
	r.known[kind] = gvr
	return gvr, nil
}

func (r *resolver) forget(kind event.Kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, kind)
}

func (r *resolver) ask(ctx context.Context, kind event.Kind) (schema.GroupVersionResource, error) {
	none := schema.GroupVersionResource{}
	groups, err := r.disco.ServerGroupsWithContext(ctx)
	if err != nil {
		return none, fmt.Errorf("asking what the API server serves: %w", err)
	}
	for _, version := range versionsOf(groups, kind.Group()) {
		resources, err := r.disco.ServerResourcesForGroupVersionWithContext(ctx, version)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return none, fmt.Errorf("asking what %s serves: %w", version, err)
		}
		for i := range resources.APIResources {
			served := &resources.APIResources[i]
			if served.Name == kind.Resource() && slices.Contains(served.Verbs, "list") && slices.Contains(served.Verbs, "watch") {
				gv, err := schema.ParseGroupVersion(version)
				if err != nil {
					return none, fmt.Errorf("reading discovery's version %q: %w", version, err)
				}
				return gv.WithResource(served.Name), nil
			}
		}
	}
	return none, fmt.Errorf("looking for %s: %w", kind, errAbsent)
}

// versionsOf lists a group's versions, the preferred one first; none if the
// server has no such group.
func versionsOf(groups *metav1.APIGroupList, group string) []string {
	for i := range groups.Groups {
		g := &groups.Groups[i]
		if g.Name != group {
			continue
		}
		versions := []string{g.PreferredVersion.GroupVersion}
		for _, v := range g.Versions {
			if v.GroupVersion != g.PreferredVersion.GroupVersion {
				versions = append(versions, v.GroupVersion)
			}
		}
		return versions
	}
	return nil
}

// absent confirms with discovery that a 404 means what it says.
func (a *API) absent(ctx context.Context, kind event.Kind) bool {
	a.kinds.forget(kind)
	_, err := a.kinds.ask(ctx, kind)
	return errors.Is(err, errAbsent)
}

// version parses a resourceVersion, which is a number by the API's own promise
// since v1.35 and in practice since ever.
func version(s string) (uint64, error) {
	v, err := strconv.ParseUint(s, 10, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("resourceVersion %q is no number", s)
	}
	return v, nil
}

// traceConn passes the connection that a request got to found.
func traceConn(ctx context.Context, found func(*heardConn)) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { found(heardOf(info.Conn)) },
	})
}

// isNotServed reports a 404.
func isNotServed(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code == http.StatusNotFound
}
