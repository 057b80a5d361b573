package kube

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/shared/event"
)

// GuardOptions are what all sessions of a SliceClient share.
type GuardOptions struct{ WriteOptions }

// SliceScope is what one reconcile looked at.
type SliceScope struct {
	// Service is the namespace and the value of kubernetes.io/service-name.
	Service event.Key
	// OwnerUID goes into the names of new slices: the UID of the Service, or of
	// the Endpoints that are mirrored.
	OwnerUID string
	// Existing are all slices of the service that the reconcile decides on, as
	// read. They are the source of preconditions and of taken names; they are
	// not changed.
	Existing []*discoveryv1.EndpointSlice
	// OnWrite and OnFail are told of this session's writes, besides those of
	// the client's options. May be nil.
	OnWrite func(Write)
	OnFail  func(Write, error)
}

// SliceClient is a kubernetes.Interface for a library that writes
// EndpointSlices and holds one client for life, as k8s.io/endpointslice does
// (NewReconciler makes the metrics cache too, so one per reconcile would break
// the gauges). Reads of EndpointSlices pass. Writes go to the open session of
// their service and are refused without one. Everything else is refused.
//
// The way to a session: Create and Update carry the service's name as a label;
// Delete has only the slice's name and goes to the session whose snapshot holds
// it. Keys are reconciled one at a time, so a service has at most one session.
type SliceClient struct {
	kubernetes.Interface // refuses

	base     kubernetes.Interface
	opts     GuardOptions
	mu       sync.Mutex
	sessions map[event.Key]*SliceSession
}

// GuardEndpointSlices wraps base. Nothing is sent outside sessions.
func GuardEndpointSlices(base kubernetes.Interface, opts GuardOptions) *SliceClient {
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Second
	}
	opts.limiter = limiterOf(base)
	return &SliceClient{Interface: refuser(), base: base, opts: opts, sessions: map[event.Key]*SliceSession{}}
}

// Begin opens the session of one reconcile. ctx bounds its writes, whatever
// context the library passes. A session for a service that has one already
// refuses every write with ErrConflict. End must be called.
func (c *SliceClient) Begin(ctx context.Context, scope SliceScope) *SliceSession {
	s := newSliceSession(ctx, c.base, c.opts, scope)
	s.client = c
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, busy := c.sessions[scope.Service]; busy {
		s.closed = fmt.Errorf("writing slices of %s: %w: another reconcile of it is running", scope.Service, ErrConflict)
		return s
	}
	c.sessions[scope.Service] = s
	return s
}

func (c *SliceClient) end(s *SliceSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions[s.scope.Service] == s {
		delete(c.sessions, s.scope.Service)
	}
}

// DiscoveryV1 returns the client that routes to sessions.
func (c *SliceClient) DiscoveryV1() discoveryclient.DiscoveryV1Interface {
	return sliceGroup{base: c.base, route: c}
}

// of finds the session of a slice to create or update.
func (c *SliceClient) of(slice *discoveryv1.EndpointSlice) (*SliceSession, error) {
	key := event.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok := c.sessions[key]; ok {
		return s, nil
	}
	return nil, fmt.Errorf("writing slice %s/%s: %w: no session for service %s", slice.Namespace, slice.Name, ErrRefused, key)
}

// named finds the session whose snapshot holds a slice.
func (c *SliceClient) named(namespace, name string) (*SliceSession, error) {
	c.mu.Lock()
	var found []*SliceSession
	for key, s := range c.sessions {
		if key.Namespace == namespace && s.holds(name) {
			found = append(found, s)
		}
	}
	c.mu.Unlock()
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, fmt.Errorf("deleting slice %s/%s: %w: no session knows it", namespace, name, ErrRefused)
	}
	// Its label moved from one service to another while both are reconciled: one
	// of the snapshots is stale, and nobody here knows which.
	err := fmt.Errorf("deleting slice %s/%s: %w: two services claim it", namespace, name, ErrConflict)
	for _, s := range found {
		s.failed(err)
	}
	return nil, err
}

// SliceSession is the writes of one reconcile. It is a kubernetes.Interface
// itself, for code of ours that needs no routing.
type SliceSession struct {
	kubernetes.Interface // refuses

	ctx    context.Context //nolint:containedctx // the library passes context.TODO()
	base   kubernetes.Interface
	client *SliceClient
	opts   GuardOptions
	scope  SliceScope

	mu       sync.Mutex
	closed   error                                 // why nothing may be written any more
	existing map[string]*discoveryv1.EndpointSlice // by name, as of this session's last write
	taken    map[string]bool                       // names not to be used for new slices
	writes   []Write
	errs     []error
	// shadow: a write was held back. The rest of the session builds on it, so
	// nothing of it is sent any more.
	shadow bool
}

// NewSliceSession opens a session that is used directly, without a SliceClient.
func NewSliceSession(ctx context.Context, base kubernetes.Interface, opts GuardOptions, scope SliceScope) *SliceSession {
	if opts.Timeout <= 0 {
		opts.Timeout = 10 * time.Second
	}
	opts.limiter = limiterOf(base)
	return newSliceSession(ctx, base, opts, scope)
}

func newSliceSession(ctx context.Context, base kubernetes.Interface, opts GuardOptions, scope SliceScope) *SliceSession {
	s := &SliceSession{
		Interface: refuser(), ctx: ctx, base: base, opts: opts, scope: scope,
		existing: make(map[string]*discoveryv1.EndpointSlice, len(scope.Existing)),
		taken:    make(map[string]bool, len(scope.Existing)),
	}
	for _, slice := range scope.Existing {
		s.existing[slice.Name] = slice
		s.taken[slice.Name] = true
	}
	return s
}

// End closes the session; what comes after is refused.
func (s *SliceSession) End() {
	s.mu.Lock()
	if s.closed == nil {
		s.closed = fmt.Errorf("writing slices of %s: %w: the session has ended", s.scope.Service, ErrRefused)
	}
	s.mu.Unlock()
	if s.client != nil {
		s.client.end(s)
	}
}

// Err returns the sorted errors of all failed writes, joined; the library
// flattens them into text.
func (s *SliceSession) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.errs...)
}

// Writes returns what was written, or intended in shadow mode.
func (s *SliceSession) Writes() []Write {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Write(nil), s.writes...)
}

// Slices returns what the session knows of the service's slices: as they were,
// with what it has written, or would have.
func (s *SliceSession) Slices() []*discoveryv1.EndpointSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.existing))
}

// sent tells of a write that the API server did not take and returns its error.
func (s *SliceSession) sent(verb Verb, ref Ref, slice *discoveryv1.EndpointSlice, err error) error {
	if errors.Is(err, ErrRefused) {
		return err // it was not sent
	}
	w := Write{Verb: verb, Ref: ref, Base: ref.Version}
	if slice != nil {
		w.Body, _ = Encode(slice) // it was encoded to be sent
	}
	for _, tell := range []func(Write, error){s.scope.OnFail, s.opts.OnFail} {
		if tell != nil {
			tell(w, err)
		}
	}
	return err
}

// DiscoveryV1 returns the guarded client.
func (s *SliceSession) DiscoveryV1() discoveryclient.DiscoveryV1Interface {
	return sliceGroup{base: s.base, route: s}
}

func (s *SliceSession) of(slice *discoveryv1.EndpointSlice) (*SliceSession, error) {
	key := event.Key{Namespace: slice.Namespace, Name: slice.Labels[discoveryv1.LabelServiceName]}
	if key != s.scope.Service {
		err := malformed("writing slice %s/%s: it is of service %s, the session of %s", slice.Namespace, slice.Name, key, s.scope.Service)
		s.failed(err)
		return nil, err
	}
	return s, nil
}

func (s *SliceSession) named(namespace, name string) (*SliceSession, error) {
	if namespace == s.scope.Service.Namespace && s.holds(name) {
		return s, nil
	}
	err := fmt.Errorf("deleting slice %s/%s: %w: the session does not know it", namespace, name, ErrRefused)
	s.failed(err)
	return nil, err
}

func (s *SliceSession) holds(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.existing[name]
	return ok
}

func (s *SliceSession) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.errs = append(s.errs, err)
}

// nameTries is how many foreign slices may stand in the way of one name.
const nameTries = 10

func (s *SliceSession) create(slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	slice = slice.DeepCopy()
	named := slice.Name != ""
	slice.GenerateName = ""
	for range nameTries {
		if !named {
			slice.Name = s.freeName(slice.AddressType)
		}
		after, err := s.tryCreate(slice)
		if !apierrors.IsAlreadyExists(err) {
			return after, err
		}
		if named {
			return nil, err
		}
		foreign, readErr := s.foreign(slice)
		if readErr != nil {
			return nil, readErr
		}
		if !foreign {
			return nil, err // ours, and not in the snapshot: the caller reads live
		}
		s.take(slice.Name)
	}
	return nil, fmt.Errorf("creating a slice of %s: %w: %d names in a row are taken by others", s.scope.Service, ErrConflict, nameTries)
}

func (s *SliceSession) tryCreate(slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	after := slice.DeepCopy()
	ctx, cancel, shadow, err := s.sending()
	if err != nil {
		return nil, fmt.Errorf("creating slice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	defer cancel()
	if shadow {
		after.UID, after.ResourceVersion, after.Generation = types.UID("shadow-"+slice.Name), "1", 1
	} else {
		after, err = s.slices().Create(ctx, slice, metav1.CreateOptions{FieldManager: s.opts.Manager})
		if err != nil {
			ref := Ref{Kind: EndpointSlices, Key: event.Key{Namespace: slice.Namespace, Name: slice.Name}}
			return nil, s.sent(VerbCreate, ref, slice, fmt.Errorf("creating slice %s: %w", ref.Key, Sort(err)))
		}
	}
	return after, s.done(VerbCreate, 0, slice, after)
}

// foreign reports whether the slice that has our name is one that a reading by
// label will never show: then only another name helps.
func (s *SliceSession) foreign(slice *discoveryv1.EndpointSlice) (bool, error) {
	ctx, cancel := s.context()
	defer cancel()
	live, err := s.slices().Get(ctx, slice.Name, metav1.GetOptions{})
	if err != nil {
		return false, fmt.Errorf("reading slice %s/%s: %w", slice.Namespace, slice.Name, Sort(err))
	}
	for _, label := range []string{discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy} {
		if live.Labels[label] != slice.Labels[label] {
			return true, nil
		}
	}
	return false, nil
}

func (s *SliceSession) update(slice *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	before := s.get(slice.Name)
	if before == nil {
		return nil, fmt.Errorf("updating slice %s/%s: %w: it is not in the snapshot", slice.Namespace, slice.Name, ErrConflict)
	}
	slice, err := completeSlice(slice, before)
	if err != nil {
		return nil, fmt.Errorf("updating slice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	if sameSlice(before, slice) {
		return before.DeepCopy(), nil
	}
	base, err := version(slice.ResourceVersion)
	if err != nil {
		return nil, malformed("updating slice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	after := slice.DeepCopy()
	ctx, cancel, shadow, err := s.sending()
	if err != nil {
		return nil, fmt.Errorf("updating slice %s/%s: %w", slice.Namespace, slice.Name, err)
	}
	defer cancel()
	if shadow {
		after.Generation++
	} else {
		after, err = s.slices().Update(ctx, slice, metav1.UpdateOptions{FieldManager: s.opts.Manager})
		if err != nil {
			ref := Ref{EndpointSlices, event.Key{Namespace: slice.Namespace, Name: slice.Name}, string(slice.UID), base}
			return nil, s.sent(VerbUpdate, ref, slice, fmt.Errorf("updating slice %s: %w", ref.Key, sortWrite(err)))
		}
	}
	return after, s.done(VerbUpdate, base, slice, after)
}

// completeSlice puts in what makes an update safe. The library recycles a slice
// by giving a new object the old one's name: without UID and resourceVersion
// that would overwrite whatever is there by now, and without its annotations and
// finalizers it would erase other people's.
func completeSlice(slice, before *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	slice = slice.DeepCopy()
	if before.UID == "" || before.ResourceVersion == "" {
		return slice, malformed("the snapshot has no UID or no resourceVersion")
	}
	if slice.UID != "" && slice.UID != before.UID {
		return slice, fmt.Errorf("%w: the snapshot has another UID", ErrConflict)
	}
	if slice.UID == "" {
		carryOver(slice, before)
	}
	slice.UID = before.UID
	if slice.ResourceVersion == "" {
		slice.ResourceVersion = before.ResourceVersion
	}
	return slice, nil
}

func carryOver(slice, before *discoveryv1.EndpointSlice) {
	slice.GenerateName, slice.Generation = before.GenerateName, before.Generation
	slice.CreationTimestamp = before.CreationTimestamp
	slice.Finalizers = append([]string(nil), before.Finalizers...)
	for k, v := range before.Annotations {
		if _, ok := slice.Annotations[k]; ok || k == corev1.EndpointsLastChangeTriggerTime {
			continue
		}
		if slice.Annotations == nil {
			slice.Annotations = map[string]string{}
		}
		slice.Annotations[k] = v
	}
}

// sameSlice reports whether an update would change nothing but the time that
// says when something changed.
func sameSlice(a, b *discoveryv1.EndpointSlice) bool {
	return a.AddressType == b.AddressType &&
		apiequality.Semantic.DeepEqual(a.Labels, b.Labels) &&
		apiequality.Semantic.DeepEqual(timeless(a.Annotations), timeless(b.Annotations)) &&
		apiequality.Semantic.DeepEqual(a.OwnerReferences, b.OwnerReferences) &&
		apiequality.Semantic.DeepEqual(a.Finalizers, b.Finalizers) &&
		apiequality.Semantic.DeepEqual(a.Ports, b.Ports) &&
		apiequality.Semantic.DeepEqual(a.Endpoints, b.Endpoints)
}

func timeless(annotations map[string]string) map[string]string {
	if _, ok := annotations[corev1.EndpointsLastChangeTriggerTime]; !ok {
		return annotations
	}
	annotations = maps.Clone(annotations)
	delete(annotations, corev1.EndpointsLastChangeTriggerTime)
	return annotations
}

func (s *SliceSession) remove(name string, opts metav1.DeleteOptions) error {
	before := s.get(name)
	if before == nil {
		return fmt.Errorf("deleting slice %s/%s: %w: it is not in the snapshot", s.scope.Service.Namespace, name, ErrConflict)
	}
	ref, err := refOf(EndpointSlices, before)
	if err == nil {
		err = complete(ref)
	}
	if err != nil {
		return malformed("deleting slice %s/%s: %w", before.Namespace, name, err)
	}
	opts.Preconditions = deleteOptions(ref, nil).Preconditions
	ctx, cancel, shadow, err := s.sending()
	if err != nil {
		return fmt.Errorf("deleting slice %s/%s: %w", before.Namespace, name, err)
	}
	defer cancel()
	if !shadow {
		// Gone already is what was wanted; another UID is not.
		if err := s.slices().Delete(ctx, name, opts); err != nil && !apierrors.IsNotFound(err) {
			return s.sent(VerbDelete, ref, nil, fmt.Errorf("deleting slice %s: %w", ref.Key, sortWrite(err)))
		}
	}
	return s.done(VerbDelete, ref.Version, nil, before)
}

// begin asks whether anything may be written at all.
func (s *SliceSession) begin() error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed != nil {
		return closed
	}
	if err := s.ctx.Err(); err != nil {
		return fmt.Errorf("writing slices of %s: %w", s.scope.Service, Sort(err))
	}
	shadow, err := s.opts.ask(s.ctx)
	if err != nil {
		return fmt.Errorf("writing slices of %s: %w", s.scope.Service, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shadow = s.shadow || shadow
	return nil
}

func (s *SliceSession) isShadow() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shadow
}

// sending waits for the allowance of one write; see WriteOptions.
func (s *SliceSession) sending() (ctx context.Context, cancel context.CancelFunc, shadow bool, err error) {
	ctx, cancel, shadow, err = s.opts.sending(s.ctx, s.isShadow())
	if err != nil {
		return nil, nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shadow = s.shadow || shadow
	return ctx, cancel, shadow, nil
}

func (s *SliceSession) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(WithGuard(s.ctx, s.opts.Guard), s.opts.Timeout)
}

func (s *SliceSession) slices() discoveryclient.EndpointSliceInterface {
	return s.base.DiscoveryV1().EndpointSlices(s.scope.Service.Namespace)
}

func (s *SliceSession) get(name string) *discoveryv1.EndpointSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.existing[name]
}

func (s *SliceSession) take(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[name] = true
}

// done records a write; later ones of the session build on it.
func (s *SliceSession) done(verb Verb, base uint64, sent, after *discoveryv1.EndpointSlice) error {
	ref, err := refOf(EndpointSlices, after)
	if err != nil {
		return fmt.Errorf("reading what was written: %w", Sort(err))
	}
	write := Write{Verb: verb, Ref: ref, Base: base, Shadow: s.isShadow()}
	if sent != nil {
		if write.Body, err = Encode(sent); err != nil {
			return malformed("recording slice %s: %w", ref.Key, err)
		}
	}
	s.mu.Lock()
	s.writes = append(s.writes, write)
	s.taken[after.Name] = true
	if verb == VerbDelete {
		delete(s.existing, after.Name)
	} else {
		s.existing[after.Name] = after.DeepCopy()
	}
	s.mu.Unlock()
	for _, tell := range []func(Write){s.scope.OnWrite, s.opts.OnWrite} {
		if tell != nil {
			tell(write)
		}
	}
	return nil
}

func (s *SliceSession) freeName(addressType discoveryv1.AddressType) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n := 0; ; n++ {
		if name := SliceName(s.scope.Service.Name, s.scope.OwnerUID, addressType, n); !s.taken[name] {
			return name
		}
	}
}

// maxSliceName is that of a label's value, so that a slice's name can be one;
// an object's name may have 253.
const maxSliceName = 63

var sliceHash = base32.NewEncoding("0123456789abcdefghjkmnpqrstvwxyz").WithPadding(base32.NoPadding)

// SliceName returns the n-th name for slices of a service and address type:
// <service>-<hash>-<n>, where the hash is of the owner's UID and the address
// type. Two owners that create for the same service collide, which is the point.
// A long service name is cut; the hash keeps the result unique.
func SliceName(service, ownerUID string, addressType discoveryv1.AddressType, n int) string {
	sum := sha256.Sum256([]byte(ownerUID + "/" + string(addressType)))
	suffix := "-" + sliceHash.EncodeToString(sum[:5]) + "-" + strconv.Itoa(n)
	if room := maxSliceName - len(suffix); len(service) > room {
		service = strings.TrimRight(service[:room], "-.")
	}
	return service + suffix
}

// router finds the session of a write.
type router interface {
	of(*discoveryv1.EndpointSlice) (*SliceSession, error)
	named(namespace, name string) (*SliceSession, error)
}

// sliceGroup is discovery.k8s.io/v1 with one guarded resource.
type sliceGroup struct {
	base  kubernetes.Interface
	route router
}

// RESTClient refuses: it would lead around the guard.
func (g sliceGroup) RESTClient() rest.Interface { return refusingREST() }

func (g sliceGroup) EndpointSlices(namespace string) discoveryclient.EndpointSliceInterface {
	return guardedSlices{namespace: namespace, read: g.base.DiscoveryV1().EndpointSlices(namespace), route: g.route}
}

// guardedSlices lets reads pass and sends writes through a session. The
// library's contexts are for reads only: a session has its own.
type guardedSlices struct {
	discoveryclient.EndpointSliceExpansion

	namespace string
	read      discoveryclient.EndpointSliceInterface
	route     router
}

// write runs one write in its session and keeps its error there.
func write[T any](s *SliceSession, f func() (T, error)) (T, error) {
	var none T
	if err := s.begin(); err != nil {
		s.failed(err)
		return none, err
	}
	out, err := f()
	if err != nil {
		s.failed(err)
		return none, err
	}
	return out, nil
}

func (g guardedSlices) Create(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	s, err := g.route.of(slice)
	if err != nil {
		return nil, err
	}
	return write(s, func() (*discoveryv1.EndpointSlice, error) { return s.create(slice) })
}

func (g guardedSlices) Update(_ context.Context, slice *discoveryv1.EndpointSlice, _ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	s, err := g.route.of(slice)
	if err != nil {
		return nil, err
	}
	return write(s, func() (*discoveryv1.EndpointSlice, error) { return s.update(slice) })
}

func (g guardedSlices) Delete(_ context.Context, name string, opts metav1.DeleteOptions) error {
	s, err := g.route.named(g.namespace, name)
	if err != nil {
		return err
	}
	_, err = write(s, func() (struct{}, error) { return struct{}{}, s.remove(name, opts) })
	return err
}

func (g guardedSlices) Get(ctx context.Context, name string, opts metav1.GetOptions) (*discoveryv1.EndpointSlice, error) {
	return g.read.Get(ctx, name, opts)
}

func (g guardedSlices) List(ctx context.Context, opts metav1.ListOptions) (*discoveryv1.EndpointSliceList, error) {
	return g.read.List(ctx, opts)
}

func (g guardedSlices) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	return g.read.Watch(ctx, opts)
}

func (g guardedSlices) DeleteCollection(context.Context, metav1.DeleteOptions, metav1.ListOptions) error {
	return errNoSession("deleting slices by selector")
}

func (g guardedSlices) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*discoveryv1.EndpointSlice, error) {
	return nil, errNoSession("patching a slice")
}

func (g guardedSlices) Apply(context.Context, *applydiscoveryv1.EndpointSliceApplyConfiguration, metav1.ApplyOptions) (*discoveryv1.EndpointSlice, error) {
	return nil, errNoSession("applying a slice")
}

func errNoSession(what string) error {
	return fmt.Errorf("%s: %w: this client creates, updates and deletes EndpointSlices one by one", what, ErrRefused)
}

// refusingREST sends nothing and says why.
var refusingREST = sync.OnceValue(func() rest.Interface {
	conf := &rest.Config{Host: "refused.invalid", Transport: refusing{}, QPS: -1}
	conf.GroupVersion = &corev1.SchemeGroupVersion
	conf.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(conf)
	if err != nil {
		panic(fmt.Sprintf("making a client that refuses: %v", err)) // constant input
	}
	return client
})

var refuser = sync.OnceValue(func() kubernetes.Interface { return kubernetes.New(refusingREST()) })

type refusing struct{}

func (refusing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
	return nil, fmt.Errorf("%w: this client is for EndpointSlices only", ErrRefused)
}
