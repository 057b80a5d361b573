package cache

import "github.com/millrace-io/millrace/shared/event"

// Reader is what may be looked at within one View: nothing changes meanwhile.
// Objects are shared and must not be modified. What is returned may be kept.
type Reader interface {
	// Get returns an object. An object that cannot be read is not there: see
	// Opaque.
	Get(kind event.Kind, key event.Key) (any, bool)
	// List returns the objects of a namespace, of all for "", in no order.
	List(kind event.Kind, namespace string) []any
	// ByIndex returns the objects whose index function returned value, in no
	// order.
	ByIndex(kind event.Kind, index, value string) []any
	// Keys returns the keys of all objects, opaque ones included, in no order.
	Keys(kind event.Kind) []event.Key
	// Opaque reports whether an object exists that cannot be read. Who decides
	// by absence asks Opaques.
	Opaque(kind event.Kind, key event.Key) bool
	// Opaques returns the keys of a namespace (of all for "") that cannot be
	// read: a decision that counts on what List does not hold has to wait.
	Opaques(kind event.Kind, namespace string) []event.Key
}

// View calls fn with a reader that is valid until fn returns. fn must not call
// View of the same cache again, nor block.
func (c *Cache) View(fn func(r Reader)) { View(fn, c) }

// View is one consistent look at several caches; each kind is read from the
// first that holds it.
func View(fn func(r Reader), caches ...*Cache) {
	v := view(caches)
	for _, c := range caches {
		c.mu.RLock()
	}
	defer func() {
		for _, c := range caches {
			c.mu.RUnlock()
		}
	}()
	fn(v)
}

// Get returns an object as a T; false also when it is something else.
func Get[T any](r Reader, kind event.Kind, key event.Key) (T, bool) {
	obj, _ := r.Get(kind, key)
	t, ok := obj.(T)
	return t, ok
}

// List returns the objects of a namespace, of all for "", as Ts.
func List[T any](r Reader, kind event.Kind, namespace string) []T {
	return as[T](r.List(kind, namespace))
}

// ByIndex returns the objects found under an index as Ts.
func ByIndex[T any](r Reader, kind event.Kind, index, value string) []T {
	return as[T](r.ByIndex(kind, index, value))
}

func as[T any](objects []any) []T {
	out := make([]T, 0, len(objects))
	for _, obj := range objects {
		if t, ok := obj.(T); ok {
			out = append(out, t)
		}
	}
	return out
}

// view reads caches whose locks are held.
type view []*Cache

// none answers for a kind that no cache holds.
var none = newStore(Input{}, 0)

func (v view) store(kind event.Kind) *store {
	for _, c := range v {
		if s := c.stores[kind]; s != nil {
			return s
		}
	}
	return none
}

func (v view) Get(kind event.Kind, key event.Key) (any, bool) {
	e := v.store(kind).entries[key]
	if e == nil || e.opaque {
		return nil, false
	}
	return e.obj, true
}

func (v view) List(kind event.Kind, namespace string) []any {
	return v.store(kind).list(namespace)
}

func (v view) ByIndex(kind event.Kind, index, value string) []any {
	return v.store(kind).byIndex(index, value)
}

func (v view) Keys(kind event.Kind) []event.Key {
	s := v.store(kind)
	keys := make([]event.Key, 0, len(s.entries))
	for key := range s.entries {
		keys = append(keys, key)
	}
	return keys
}

func (v view) Opaque(kind event.Kind, key event.Key) bool {
	_, ok := v.store(kind).opaque[key]
	return ok
}

func (v view) Opaques(kind event.Kind, namespace string) []event.Key {
	var keys []event.Key
	for key := range v.store(kind).opaque {
		if namespace == "" || key.Namespace == namespace {
			keys = append(keys, key)
		}
	}
	return keys
}
