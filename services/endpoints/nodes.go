package endpoints

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
)

// nodeLister shows the library the nodes, which every member reads whole; any
// partition shows the same ones.
type nodeLister struct {
	p atomic.Pointer[view]
}

func (l *nodeLister) use(p view) { l.p.Store(&p) }

// Get returns a node, or the error the library tells a missing node by.
func (l *nodeLister) Get(name string) (node *corev1.Node, err error) {
	if p := l.p.Load(); p != nil {
		(*p).View(func(r cache.Reader) { node, _ = cache.Get[*corev1.Node](r, nodes, event.Key{Name: name}) })
	}
	if node == nil {
		return nil, apierrors.NewNotFound(corev1.Resource("nodes"), name)
	}
	return node, nil
}

// List returns the nodes that match.
func (l *nodeLister) List(selector labels.Selector) (out []*corev1.Node, err error) {
	p := l.p.Load()
	if p == nil {
		return nil, nil
	}
	(*p).View(func(r cache.Reader) {
		for _, node := range cache.List[*corev1.Node](r, nodes, "") {
			if selector.Matches(labels.Set(node.Labels)) {
				out = append(out, node)
			}
		}
	})
	return out, nil
}
