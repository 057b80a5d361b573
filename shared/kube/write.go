package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/millrace-io/millrace/shared/event"
)

// Verb names a write in records and metrics.
type Verb string

// The writes there are.
const (
	VerbCreate      Verb = "create"
	VerbUpdate      Verb = "update"
	VerbPatch       Verb = "patch"
	VerbPatchStatus Verb = "patch_status"
	VerbDelete      Verb = "delete"
	VerbEvict       Verb = "evict"
)

// Write is one write that was done, or in shadow mode intended.
type Write struct {
	Verb Verb
	// Ref is the object afterwards: what a reader has to wait for. After a
	// deletion it is what was deleted.
	Ref Ref
	// Base is the version the write was decided on; zero for a creation.
	Base uint64
	// Body is what was sent: the patch, or the object's protobuf encoding. Nil
	// for a deletion.
	Body []byte
	// Shadow: nothing was sent.
	Shadow bool
	// Later: it was deleted and stays until its period of grace has passed, or until
	// what it runs has ended.
	Later bool
}

// WriteOptions are what all writes of a Writer or a slice session share.
type WriteOptions struct {
	// Manager is the field manager: "millrace-<role>".
	Manager string
	// Allowance is waited for once per write, between two questions of Guard: what
	// Guard refuses costs none, and a wait may outlast what Guard has allowed. Nil:
	// nothing is waited for. What is not sent needs none.
	Allowance Allowance
	// Guard is asked before every write and again at the wire; nil allows all.
	// With ErrShadow the write is treated as under Shadow.
	Guard Guard
	// Shadow records writes through OnWrite and sends nothing.
	Shadow bool
	// OnWrite is told of every write that succeeded or was intended, from the
	// goroutine that made it. May be nil.
	OnWrite func(Write)
	// OnFail is told of every write that was sent and that the API server did
	// not take, as far as we know; its Ref is the object before. May be nil.
	OnFail func(Write, error)
	// Timeout bounds one write, the wait for the client's own rate limiter
	// included, that for the Allowance not. Zero:
	// the RequestTimeout of the API's Config; for a slice session 10 s.
	Timeout time.Duration

	limiter flowcontrol.RateLimiter // the client's own; nil: none
}

// Writer writes with preconditions. Every write names the UID and the
// resourceVersion it was decided on and fails with ErrConflict or ErrGone if the
// object is no longer that. Nothing is retried here.
type Writer struct {
	api  *API
	opts WriteOptions
}

// Writer returns a writer of its own name and guard.
func (a *API) Writer(opts WriteOptions) *Writer {
	if opts.Manager == "" {
		opts.Manager = a.rest.UserAgent
	}
	if opts.Timeout <= 0 {
		opts.Timeout = a.cfg.RequestTimeout
	}
	opts.limiter = limiterOf(a.client)
	return &Writer{api: a, opts: opts}
}

// MergePatch is a patch body that replaces lists as a whole (RFC 7386).
type MergePatch struct{ Body any }

// Patch changes an object. The body is []byte or json.RawMessage as it is,
// anything else through encoding/json; a strategic merge patch for kinds that we
// have a type of (lists merge by their keys, "$patch" works), a merge patch for
// others and for MergePatch. The preconditions are put in here; a body with
// other ones is ErrMalformed. An empty patch is not sent. The Ref returned has
// the version afterwards: the base of the next patch, status and spec share it.
func (w *Writer) Patch(ctx context.Context, ref Ref, patch any) (Ref, error) {
	return w.patch(ctx, VerbPatch, ref, patch)
}

// PatchStatus is Patch on the status subresource.
func (w *Writer) PatchStatus(ctx context.Context, ref Ref, patch any) (Ref, error) {
	return w.patch(ctx, VerbPatchStatus, ref, patch, "status")
}

func (w *Writer) patch(ctx context.Context, verb Verb, ref Ref, patch any, subresource ...string) (Ref, error) {
	fail := func(err error) (Ref, error) { return ref, fmt.Errorf("patching %s: %w", ref, err) }
	typed, known := typedKinds[ref.Kind]
	kind := types.MergePatchType
	if m, merge := patch.(MergePatch); merge {
		patch = m.Body
	} else if known {
		kind = types.StrategicMergePatchType
	}
	body, err := withPreconditions(ref, patch)
	if err != nil {
		return fail(err)
	}
	if body == nil {
		return ref, nil
	}
	ctx, cancel, shadow, err := w.begin(ctx)
	if err != nil {
		return fail(err)
	}
	defer cancel()
	after := ref
	if !shadow {
		raw, err := w.sendPatch(ctx, typed, known, ref, kind, body, subresource)
		if err != nil {
			return fail(w.failed(Write{Verb: verb, Ref: ref, Base: ref.Version, Body: body}, sortWrite(err)))
		}
		if after, err = refOf(ref.Kind, raw); err != nil {
			return fail(Sort(err))
		}
	}
	w.done(Write{Verb: verb, Ref: after, Base: ref.Version, Body: body, Shadow: shadow})
	return after, nil
}

// sendPatch asks for the answer as an object we can read: typed where we have a
// type, else as metadata.
func (w *Writer) sendPatch(ctx context.Context, typed typedKind, known bool, ref Ref, kind types.PatchType, body []byte, subresource []string) (runtime.Object, error) {
	opts := metav1.PatchOptions{FieldManager: w.opts.Manager}
	if !known {
		gvr, err := w.api.kinds.resolve(ctx, ref.Kind)
		if err != nil {
			return nil, err
		}
		return w.api.meta.Resource(gvr).Namespace(ref.Key.Namespace).Patch(ctx, ref.Key.Name, kind, body, opts, subresource...)
	}
	object := typed.object()
	err := typed.client(w.api.client).Patch(kind).MaxRetries(0).
		Namespace(ref.Key.Namespace).Resource(typed.gvr.Resource).Name(ref.Key.Name).SubResource(subresource...).
		VersionedParams(&opts, scheme.ParameterCodec).Body(body).Do(ctx).Into(object)
	return object, err
}

// Delete deletes exactly the object, in exactly the state, that ref names. A nil
// grace leaves the period to the object.
func (w *Writer) Delete(ctx context.Context, ref Ref, grace *int64) error {
	later := ref.Kind == Pods && (grace == nil || *grace > 0)
	return w.remove(ctx, Write{Verb: VerbDelete, Ref: ref, Base: ref.Version, Later: later}, func(ctx context.Context) error {
		return w.sendDelete(ctx, ref, deleteOptions(ref, grace))
	})
}

// Evict asks for a pod to be deleted where no PodDisruptionBudget forbids it:
// ErrThrottled where one does.
func (w *Writer) Evict(ctx context.Context, ref Ref) error {
	return w.remove(ctx, Write{Verb: VerbEvict, Ref: ref, Base: ref.Version, Later: true}, func(ctx context.Context) error {
		options := deleteOptions(ref, nil)
		return w.api.client.PolicyV1().RESTClient().Post().AbsPath("/api/v1").MaxRetries(0).
			Namespace(ref.Key.Namespace).Resource("pods").Name(ref.Key.Name).SubResource("eviction").
			Body(&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: ref.Key.Name}, DeleteOptions: &options}).
			Do(ctx).Error()
	})
}

func (w *Writer) remove(ctx context.Context, write Write, send func(ctx context.Context) error) error {
	fail := func(err error) error { return fmt.Errorf("%s of %s: %w", write.Verb, write.Ref, err) }
	if err := complete(write.Ref); err != nil {
		return fail(err)
	}
	ctx, cancel, shadow, err := w.begin(ctx)
	if err != nil {
		return fail(err)
	}
	defer cancel()
	if !shadow {
		if err := send(ctx); err != nil {
			return fail(w.failed(write, sortWrite(err)))
		}
	}
	write.Shadow = shadow
	w.done(write)
	return nil
}

func (w *Writer) sendDelete(ctx context.Context, ref Ref, opts metav1.DeleteOptions) error {
	typed, known := typedKinds[ref.Kind]
	if !known {
		gvr, err := w.api.kinds.resolve(ctx, ref.Kind)
		if err != nil {
			return err
		}
		return w.api.meta.Resource(gvr).Namespace(ref.Key.Namespace).Delete(ctx, ref.Key.Name, opts)
	}
	return typed.client(w.api.client).Delete().MaxRetries(0).
		Namespace(ref.Key.Namespace).Resource(typed.gvr.Resource).Name(ref.Key.Name).
		Body(&opts).Do(ctx).Error()
}

func deleteOptions(ref Ref, grace *int64) metav1.DeleteOptions {
	uid, v := types.UID(ref.UID), ref.version()
	return metav1.DeleteOptions{
		GracePeriodSeconds: grace,
		Preconditions:      &metav1.Preconditions{UID: &uid, ResourceVersion: &v},
	}
}

// whole are the kinds that travel whole and may be PUT.
type whole interface {
	*corev1.Endpoints | *discoveryv1.EndpointSlice
}

// CreateEndpoints creates o as it is. ErrConflict if the name is taken.
func (w *Writer) CreateEndpoints(ctx context.Context, o *corev1.Endpoints) (*corev1.Endpoints, error) {
	return put(ctx, w, VerbCreate, Endpoints, o)
}

// UpdateEndpoints replaces the object of o's UID and resourceVersion.
func (w *Writer) UpdateEndpoints(ctx context.Context, o *corev1.Endpoints) (*corev1.Endpoints, error) {
	return put(ctx, w, VerbUpdate, Endpoints, o)
}

// CreateEndpointSlice creates o as it is; it needs a name, a generated one would
// let two owners both create. ErrConflict if the name is taken.
func (w *Writer) CreateEndpointSlice(ctx context.Context, o *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return put(ctx, w, VerbCreate, EndpointSlices, o)
}

// UpdateEndpointSlice replaces the object of o's UID and resourceVersion.
func (w *Writer) UpdateEndpointSlice(ctx context.Context, o *discoveryv1.EndpointSlice) (*discoveryv1.EndpointSlice, error) {
	return put(ctx, w, VerbUpdate, EndpointSlices, o)
}

// put is a function, because a method cannot be told which kinds it may take.
func put[T whole](ctx context.Context, w *Writer, verb Verb, kind event.Kind, o T) (T, error) {
	raw, ok := any(o).(runtime.Object)
	if !ok {
		return nil, malformed("writing %s: %T is no object", kind, o)
	}
	answer, err := w.put(ctx, verb, kind, raw)
	if err != nil {
		return nil, err
	}
	after, ok := answer.(T)
	if !ok {
		return nil, fmt.Errorf("writing %s: %w: the answer is a %T", kind, ErrUnavailable, answer)
	}
	return after, nil
}

func (w *Writer) put(ctx context.Context, verb Verb, kind event.Kind, o runtime.Object) (runtime.Object, error) {
	typed := typedKinds[kind]
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, malformed("writing %s: %w", kind, err)
	}
	ref := Ref{Kind: kind, Key: event.Key{Namespace: m.GetNamespace(), Name: m.GetName()}, UID: string(m.GetUID())}
	fail := func(err error) (runtime.Object, error) { return nil, fmt.Errorf("%s of %s: %w", verb, ref, err) }
	if ref.Key.Name == "" || ref.Key.Namespace == "" {
		return fail(malformed("it has no name or no namespace"))
	}
	if verb == VerbUpdate {
		if ref.Version, err = version(m.GetResourceVersion()); err != nil {
			return fail(malformed("%w", err))
		}
		if err := complete(ref); err != nil {
			return fail(err)
		}
	}
	body, err := Encode(o)
	if err != nil {
		return fail(malformed("%w", err))
	}
	ctx, cancel, shadow, err := w.begin(ctx)
	if err != nil {
		return fail(err)
	}
	defer cancel()
	after, object := ref, o.DeepCopyObject()
	if !shadow {
		if object, err = w.sendPut(ctx, typed, verb, ref, o); err != nil {
			sorted := Sort
			if verb == VerbUpdate {
				sorted = sortWrite
			}
			return fail(w.failed(Write{Verb: verb, Ref: ref, Base: ref.Version, Body: body}, sorted(err)))
		}
		if after, err = refOf(kind, object); err != nil {
			return fail(Sort(err))
		}
	}
	w.done(Write{Verb: verb, Ref: after, Base: ref.Version, Body: body, Shadow: shadow})
	return object, nil
}

func (w *Writer) sendPut(ctx context.Context, typed typedKind, verb Verb, ref Ref, o runtime.Object) (runtime.Object, error) {
	c := typed.client(w.api.client)
	var req *rest.Request
	if verb == VerbCreate {
		req = c.Post().VersionedParams(&metav1.CreateOptions{FieldManager: w.opts.Manager}, scheme.ParameterCodec)
	} else {
		req = c.Put().Name(ref.Key.Name).VersionedParams(&metav1.UpdateOptions{FieldManager: w.opts.Manager}, scheme.ParameterCodec)
	}
	object := typed.object()
	err := req.MaxRetries(0).Namespace(ref.Key.Namespace).Resource(typed.gvr.Resource).Body(o).Do(ctx).Into(object)
	return object, err
}

// begin asks the guard and makes the context that asks it again at the wire.
func (w *Writer) begin(ctx context.Context) (sending context.Context, cancel context.CancelFunc, shadow bool, err error) {
	if shadow, err = w.opts.ask(ctx); err != nil {
		return nil, nil, false, err
	}
	return w.opts.sending(ctx, shadow)
}

// ask asks the guard and returns whether the write is only intended.
func (o WriteOptions) ask(ctx context.Context) (shadow bool, err error) {
	if o.Guard != nil {
		err = o.Guard(ctx)
	}
	switch {
	case err == nil:
		return o.Shadow, nil
	case errors.Is(err, ErrShadow):
		return true, nil
	default:
		return false, refused(err)
	}
}

func (w *Writer) done(write Write) {
	if w.opts.OnWrite != nil {
		w.opts.OnWrite(write)
	}
}

// failed tells of a write that was sent, and returns its error.
func (w *Writer) failed(write Write, err error) error {
	if w.opts.OnFail != nil && !errors.Is(err, ErrRefused) {
		w.opts.OnFail(write, err)
	}
	return err
}

// complete refuses a reference that could not hold as a precondition.
func complete(ref Ref) error {
	if ref.Kind == "" || ref.Key.Name == "" || ref.UID == "" || ref.Version == 0 {
		return malformed("kind, name, UID or version is missing")
	}
	return nil
}

func refOf(kind event.Kind, raw runtime.Object) (Ref, error) {
	o, err := toObject(raw, time.Time{})
	if err != nil {
		return Ref{}, err
	}
	return o.Ref(kind), nil
}

// withPreconditions returns the patch with metadata.uid and
// metadata.resourceVersion, or nil if it would change nothing.
func withPreconditions(ref Ref, patch any) ([]byte, error) {
	if err := complete(ref); err != nil {
		return nil, err
	}
	fields, err := objectOf(patch)
	if err != nil {
		return nil, err
	}
	metadata := map[string]json.RawMessage{}
	if raw, ok := fields["metadata"]; ok {
		if err := json.Unmarshal(raw, &metadata); err != nil {
			return nil, malformed("reading the patch's metadata: %w", err)
		}
	}
	for name, want := range map[string]string{"uid": ref.UID, "resourceVersion": ref.version()} {
		if raw, ok := metadata[name]; ok {
			var got string
			if json.Unmarshal(raw, &got) != nil || got != want {
				return nil, malformed("the patch says %s is %s, the reference %q", name, raw, want)
			}
			delete(metadata, name)
		}
	}
	if len(metadata) == 0 {
		delete(fields, "metadata")
	}
	if len(fields) == 0 {
		return nil, nil
	}
	for name, value := range map[string]string{"uid": ref.UID, "resourceVersion": ref.version()} {
		if metadata[name], err = json.Marshal(value); err != nil {
			return nil, malformed("writing the patch: %w", err)
		}
	}
	if fields["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, malformed("writing the patch: %w", err)
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return nil, malformed("writing the patch: %w", err)
	}
	return body, nil
}

// objectOf reads a patch as one JSON object.
func objectOf(patch any) (map[string]json.RawMessage, error) {
	var body []byte
	switch p := patch.(type) {
	case []byte:
		body = p
	case json.RawMessage:
		body = p
	default:
		var err error
		if body, err = json.Marshal(patch); err != nil {
			return nil, malformed("encoding the patch: %w", err)
		}
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(bytes.TrimSpace(body), &fields); err != nil {
		return nil, malformed("reading the patch: %w", err)
	}
	if fields == nil {
		return nil, malformed("the patch is null")
	}
	return fields, nil
}
