package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func TestSort(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	kind := schema.GroupKind{Kind: "Pod"}
	terminating := apierrors.NewForbidden(pods, "x", errors.New("namespace is being terminated"))
	terminating.ErrStatus.Details.Causes = append(terminating.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: corev1.NamespaceTerminatingCause})
	tests := map[string]struct {
		err   error
		want  error
		class string
	}{
		"nothing happened":           {nil, nil, "none"},
		"no such object":             {apierrors.NewNotFound(pods, "x"), ErrNotFound, "not_found"},
		"another version":            {apierrors.NewConflict(pods, "x", errors.New("the object has been modified")), ErrConflict, "conflict"},
		"the name is taken":          {apierrors.NewAlreadyExists(pods, "x"), ErrConflict, "conflict"},
		"another UID":                {apierrors.NewConflict(pods, "x", errors.New("Precondition failed: UID in precondition: a, UID in object meta: b")), ErrGone, "gone"},
		"another UID, of a deletion": {apierrors.NewConflict(pods, "x", errors.New("the UID in the precondition (a) does not match the UID in record (b). The object might have been deleted and then recreated")), ErrGone, "gone"},
		"another version, as a precondition of a delete": {apierrors.NewConflict(pods, "x", errors.New("Precondition failed: ResourceVersion in precondition: 1, ResourceVersion in object meta: 2")), ErrConflict, "conflict"},
		"a patch of another UID": {
			apierrors.NewInvalid(kind, "x", field.ErrorList{field.Invalid(field.NewPath("metadata", "uid"), "a", "field is immutable")}), ErrGone, "gone",
		},
		"no permission": {apierrors.NewForbidden(pods, "x", errors.New("no")), ErrForbidden, "forbidden"},
		"no identity":   {apierrors.NewUnauthorized("no"), ErrForbidden, "forbidden"},
		"a quota":       {apierrors.NewForbidden(pods, "x", errors.New("exceeded quota: q")), ErrForbidden, "forbidden"},
		"a policy, which says 422": {
			apierrors.NewInvalid(kind, "x", field.ErrorList{field.Forbidden(field.NewPath(""), "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")}),
			ErrForbidden, "forbidden",
		},
		"a webhook, which says 400": {apierrors.NewBadRequest(`admission webhook "w" denied the request: no`), ErrForbidden, "forbidden"},
		"a namespace that goes":     {terminating, ErrNamespaceTerminating, "namespace_terminating"},
		"an invalid object": {
			apierrors.NewInvalid(kind, "x", field.ErrorList{field.Required(field.NewPath("spec"), "")}), ErrInvalid, "invalid",
		},
		"a bad request":             {apierrors.NewBadRequest("no"), ErrInvalid, "invalid"},
		"a verb that is not served": {apierrors.NewMethodNotSupported(pods, "patch"), ErrInvalid, "invalid"},
		"too many requests":         {apierrors.NewTooManyRequests("wait", 1), ErrThrottled, "throttled"},
		"an internal error":         {apierrors.NewInternalError(errors.New("no")), ErrUnavailable, "unavailable"},
		"a server time-out":         {apierrors.NewServerTimeout(pods, "get", 1), ErrUnavailable, "unavailable"},
		"a time-out":                {apierrors.NewTimeoutError("no", 1), ErrUnavailable, "unavailable"},
		"an unavailable server":     {apierrors.NewServiceUnavailable("no"), ErrUnavailable, "unavailable"},
		"history that is gone":      {apierrors.NewResourceExpired("too old"), ErrUnavailable, "unavailable"},
		"no connection":             {&net.OpError{Op: "dial", Err: errors.New("refused")}, ErrUnavailable, "unavailable"},
		"our own deadline":          {context.DeadlineExceeded, ErrUnavailable, "unavailable"},
		"our own end":               {context.Canceled, ErrUnavailable, "canceled"},
		"something else":            {errors.New("?"), ErrUnavailable, "unavailable"},
		"sorted already":            {fmt.Errorf("x: %w", ErrMalformed), ErrMalformed, "malformed"},
		"our guard":                 {refused(errors.New("paused")), ErrRefused, "refused"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			wrapped := tt.err
			if wrapped != nil {
				wrapped = fmt.Errorf("doing it: %w", tt.err)
			}
			got := Sort(wrapped)
			if !errors.Is(got, tt.want) {
				t.Errorf("Sort(%v) = %v, want %v", tt.err, got, tt.want)
			}
			if tt.err != nil && !errors.Is(got, tt.err) {
				t.Errorf("the original is no longer in %v", got)
			}
			n := 0
			for _, s := range sentinels {
				if errors.Is(got, s.err) {
					n++
				}
			}
			if tt.want != nil && n != 1 {
				t.Errorf("%v has %d sentinels", got, n)
			}
			if class := Class(wrapped); class != tt.class || !slices.Contains(Classes(), class) {
				t.Errorf("Class = %q, want %q, one of %q", class, tt.class, Classes())
			}
			if again := Sort(got); fmt.Sprint(again) != fmt.Sprint(got) {
				t.Errorf("sorting twice: %v", again)
			}
		})
	}
}

func TestAWriteToWhatIsNotThereIsGone(t *testing.T) {
	err := sortWrite(apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "x"))
	if !errors.Is(err, ErrGone) || !errors.Is(err, ErrNotFound) || Class(err) != "gone" {
		t.Errorf("%v is class %s", err, Class(err))
	}
}
