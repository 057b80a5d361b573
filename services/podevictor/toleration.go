package podevictor

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2" //nolint:depguard // the signature asks for it; nothing is logged
)

// tolerates reports whether one toleration matches one taint. lenient: the
// operators Lt and Gt count too.
func tolerates(t *corev1.Toleration, taint *corev1.Taint, lenient bool) bool {
	return t.ToleratesTaint(klog.Logger{}, taint, lenient) // what cannot be compared does not match; nobody is told
}
