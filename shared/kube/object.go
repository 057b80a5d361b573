package kube

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"

	"github.com/millrace-io/millrace/shared/event"
)

// Object is one object as the API server sent it.
type Object struct {
	Key event.Key
	UID string
	// Version is metadata.resourceVersion; of a deleted object that of its
	// deletion.
	Version uint64
	// Raw is the typed object (*corev1.Pod, …), or *metav1.PartialObjectMetadata
	// for kinds that are read as metadata. It belongs to the receiver.
	Raw runtime.Object
	// Observed is when it arrived here.
	Observed time.Time
}

func toObject(raw runtime.Object, at time.Time) (Object, error) {
	m, err := meta.Accessor(raw)
	if err != nil {
		return Object{}, fmt.Errorf("reading metadata: %w", err)
	}
	key := event.Key{Namespace: m.GetNamespace(), Name: m.GetName()}
	v, err := version(m.GetResourceVersion())
	if err != nil {
		return Object{}, fmt.Errorf("reading %s: %w", key, err)
	}
	return Object{Key: key, UID: string(m.GetUID()), Version: v, Raw: raw, Observed: at}, nil
}

// GetOne reads the newest state of one object, straight through (a quorum read).
// Kinds without a type here come as metadata. ErrNotFound if there is none.
func (a *API) GetOne(ctx context.Context, kind event.Kind, key event.Key) (Object, error) {
	return a.getOne(ctx, kind, false, key)
}

// GetMetadata is GetOne for the metadata alone, of any kind.
func (a *API) GetMetadata(ctx context.Context, kind event.Kind, key event.Key) (Object, error) {
	return a.getOne(ctx, kind, true, key)
}

func (a *API) getOne(ctx context.Context, kind event.Kind, metadataOnly bool, key event.Key) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	s, err := a.source(ctx, kind, metadataOnly)
	if err != nil {
		return Object{}, fmt.Errorf("reading %s %s: %w", kind, key, Sort(err))
	}
	return a.get(ctx, s, key)
}

func (a *API) get(ctx context.Context, s source, key event.Key) (Object, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	raw, err := s.get(ctx, key)
	if err != nil {
		return Object{}, fmt.Errorf("reading %s %s: %w", s.kind, key, Sort(err))
	}
	return toObject(raw, time.Now())
}

// ListOptions narrow a List.
type ListOptions struct {
	Namespace    string // empty: all
	Labels       string // a label selector; empty: everything
	Fields       string // a field selector; empty: everything
	MetadataOnly bool
}

// List reads a consistent list of the newest state (a quorum read, in pages) and
// the version at which it is true.
func (a *API) List(ctx context.Context, kind event.Kind, opts ListOptions) (uint64, []Object, error) {
	s, err := a.source(ctx, kind, opts.MetadataOnly)
	if err != nil {
		return 0, nil, fmt.Errorf("listing %s: %w", kind, Sort(err))
	}
	p := pager.New(func(ctx context.Context, page metav1.ListOptions) (runtime.Object, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Minute) // the server's own limit
		defer cancel()
		return s.list(ctx, opts.Namespace, page)
	})
	list, _, err := p.ListWithAlloc(ctx, metav1.ListOptions{LabelSelector: opts.Labels, FieldSelector: opts.Fields})
	if err != nil {
		return 0, nil, fmt.Errorf("listing %s: %w", kind, Sort(err))
	}
	return toObjects(list, time.Now())
}

func toObjects(list runtime.Object, at time.Time) (uint64, []Object, error) {
	m, err := meta.ListAccessor(list)
	if err != nil {
		return 0, nil, fmt.Errorf("reading a list: %w", err)
	}
	v, err := version(m.GetResourceVersion())
	if err != nil {
		return 0, nil, fmt.Errorf("reading a list: %w", err)
	}
	items, err := meta.ExtractListWithAlloc(list)
	if err != nil {
		return 0, nil, fmt.Errorf("reading a list: %w", err)
	}
	objects := make([]Object, len(items))
	for i, item := range items {
		if objects[i], err = toObject(item, at); err != nil {
			return 0, nil, err
		}
	}
	return v, objects, nil
}

// Encode returns an object's own protobuf encoding. Equal objects have equal
// bytes: the generated code sorts the keys of maps. Nil and empty slices are one
// and the same, and apiVersion and kind are not carried.
func Encode(o runtime.Object) ([]byte, error) {
	m, ok := o.(interface{ Marshal() ([]byte, error) })
	if !ok {
		return nil, fmt.Errorf("encoding %T: it has no protobuf encoding", o)
	}
	body, err := m.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encoding %T: %w", o, err)
	}
	return body, nil
}

// Decode fills into with what Encode made; what it held before is gone. T must
// be the type that was encoded.
func Decode[T any](body []byte, into *T) error {
	m, ok := any(into).(interface{ Unmarshal([]byte) error })
	if !ok {
		return fmt.Errorf("decoding %s: it has no protobuf encoding", reflect.TypeFor[T]())
	}
	*into = *new(T)
	if err := m.Unmarshal(body); err != nil {
		return fmt.Errorf("decoding %s: %w", reflect.TypeFor[T](), err)
	}
	return nil
}

// Ref names one state of one object: what a write is decided on.
type Ref struct {
	Kind    event.Kind
	Key     event.Key
	UID     string
	Version uint64
}

// Ref returns the state that o shows.
func (o Object) Ref(kind event.Kind) Ref {
	return Ref{Kind: kind, Key: o.Key, UID: o.UID, Version: o.Version}
}

// RefTo returns the state that an object of a kind shows. Its version is one that
// FromMessage or the server has put there.
func RefTo(kind event.Kind, o metav1.Object) Ref {
	v, _ := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	return Ref{Kind: kind, Key: event.Key{Namespace: o.GetNamespace(), Name: o.GetName()}, UID: string(o.GetUID()), Version: v}
}

// FromMessage reads the object that a message carries. The resourceVersion travels
// in the envelope alone, so that a change of nothing else is not published.
func FromMessage[T any, P interface {
	*T
	metav1.Object
}](m event.Message) (P, error) {
	o := P(new(T))
	if err := Decode(m.Body, (*T)(o)); err != nil {
		return nil, fmt.Errorf("reading %s %s: %w", m.Kind, m.Key, err)
	}
	o.SetResourceVersion(strconv.FormatUint(m.Version, 10))
	return o, nil
}

// String returns "kind namespace/name".
func (r Ref) String() string { return string(r.Kind) + " " + r.Key.String() }

func (r Ref) version() string { return strconv.FormatUint(r.Version, 10) }
