package podevictor

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func contains(text, part string) bool  { return strings.Contains(text, part) }
func join(texts []string) string       { return strings.Join(texts, ", ") }
func metaTime(t time.Time) metav1.Time { return metav1.NewTime(t) }

// listener is a recorder that hears what an event is about.
type listener struct{ said []string }

func (l *listener) Event(object runtime.Object, kind, reason, message string) {
	ref, ok := object.(*corev1.ObjectReference)
	if !ok {
		l.said = append(l.said, fmt.Sprintf("about a %T", object))
		return
	}
	l.said = append(l.said, fmt.Sprintf("%s %s %s about %s %s %s/%s (%s)", kind, reason, message, ref.Kind, ref.APIVersion, ref.Namespace, ref.Name, ref.UID))
}

func (l *listener) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	l.Event(object, kind, reason, fmt.Sprintf(format, args...))
}

func (l *listener) AnnotatedEventf(object runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	l.Event(object, kind, reason, fmt.Sprintf(format, args...))
}
