package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What a failed call means for the caller. Sort finds exactly one of them for
// any error, but for ErrGone, which on a write may come with ErrNotFound.
var (
	// ErrNotFound: there is no object of that name.
	ErrNotFound = errors.New("object not found")
	// ErrGone: the object with the UID that was decided on is no more; there may
	// be another one of its name.
	ErrGone = errors.New("object is gone")
	// ErrConflict: the object has changed since, or exists already.
	ErrConflict = errors.New("object has changed")
	// ErrForbidden: no permission, or a policy, quota or webhook said no.
	ErrForbidden = errors.New("refused by the API server")
	// ErrInvalid: the API server does not accept the object.
	ErrInvalid = errors.New("not valid")
	// ErrMalformed: our own code cannot form the write; no retry can mend it.
	ErrMalformed = errors.New("malformed write")
	// ErrThrottled: 429. See RetryAfter.
	ErrThrottled = errors.New("throttled by the API server")
	// ErrUnavailable: 5xx, timeout, no connection, and whatever is not known.
	ErrUnavailable = errors.New("API server unavailable")
	// ErrNamespaceTerminating: nothing can be created in this namespace again.
	ErrNamespaceTerminating = errors.New("namespace is terminating")
	// ErrRefused: a Guard said no; nothing was sent.
	ErrRefused = errors.New("refused by our guard")
	// ErrShadow is a Guard's answer, never a result: the write may be sent but
	// for shadow mode. It counts as intended and is not sent.
	ErrShadow = errors.New("shadow mode sends nothing")
)

// sentinels in the order in which Class asks for them.
var sentinels = [...]struct {
	err   error
	class string
}{
	{ErrRefused, "refused"},
	{ErrMalformed, "malformed"},
	{ErrNamespaceTerminating, "namespace_terminating"},
	{ErrGone, "gone"},
	{ErrNotFound, "not_found"},
	{ErrConflict, "conflict"},
	{ErrForbidden, "forbidden"},
	{ErrInvalid, "invalid"},
	{ErrThrottled, "throttled"},
	{ErrUnavailable, "unavailable"},
}

// Classes returns every value of Class, for metrics created at zero.
func Classes() []string {
	all := []string{"none", "canceled"}
	for _, s := range sentinels {
		all = append(all, s.class)
	}
	return all
}

// Class returns the metric label of an error: "none" for nil, "canceled" where
// the caller gave up, else one of the sentinels' names.
func Class(err error) string {
	if err == nil {
		return "none"
	}
	if errors.Is(err, context.Canceled) {
		return "canceled"
	}
	err = Sort(err)
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.class
		}
	}
	return "unavailable"
}

// Sort wraps err with the sentinel that says what it means; the original stays
// in the chain. Sorted errors are returned as they are.
func Sort(err error) error {
	if err == nil {
		return nil
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", sentinelOf(err), err)
}

// sortWrite is Sort for a call that named a UID: an object that is not there is
// that object gone.
func sortWrite(err error) error {
	err = Sort(err)
	if errors.Is(err, ErrNotFound) && !errors.Is(err, ErrGone) {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

func sentinelOf(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return ErrUnavailable // connection, timeout, or unknown: worth a retry
	}
	s := status.Status()
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ErrNamespaceTerminating
	case refusedByPolicy(s.Message):
		return ErrForbidden
	}
	switch s.Code {
	case http.StatusNotFound:
		return ErrNotFound
	case http.StatusGone:
		return ErrUnavailable // a list or watch that began too long ago: begin anew
	case http.StatusConflict:
		if uidDiffers(s.Message) {
			return ErrGone
		}
		return ErrConflict
	case http.StatusUnauthorized, http.StatusForbidden:
		return ErrForbidden
	case http.StatusTooManyRequests:
		return ErrThrottled
	case http.StatusUnprocessableEntity:
		if uidImmutable(s) {
			return ErrGone
		}
		return ErrInvalid
	case http.StatusRequestTimeout:
		return ErrUnavailable
	}
	if s.Code >= 400 && s.Code < 500 {
		return ErrInvalid
	}
	return ErrUnavailable
}

// refusedByPolicy recognises admission's no, which comes with whatever code the
// policy's author chose: a ValidatingAdmissionPolicy says 422 by default, a
// webhook 400 or 403.
func refusedByPolicy(message string) bool {
	return strings.Contains(message, "denied request: ") && strings.Contains(message, "ValidatingAdmissionPolicy ") ||
		strings.Contains(message, "admission webhook ") && strings.Contains(message, " denied the request")
}

// uidDiffers recognises a failed UID precondition. The API server sends it as
// any other conflict; only its words tell: those of a deletion (registry/rest,
// BeforeDelete) and of the storage (Preconditions.Check), v1.37.
func uidDiffers(message string) bool {
	return strings.Contains(message, "the UID in the precondition (") || strings.Contains(message, "UID in precondition: ")
}

// uidImmutable recognises a patch whose UID is not the object's: validation
// refuses to change metadata.uid.
func uidImmutable(s metav1.Status) bool {
	if s.Details == nil {
		return false
	}
	for _, cause := range s.Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

// RetryAfter returns how long the API server asked to be left alone.
func RetryAfter(err error) (time.Duration, bool) {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	return time.Duration(seconds) * time.Second, ok
}

// refused marks a guard's no.
func refused(err error) error {
	if errors.Is(err, ErrRefused) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRefused, err)
}

// malformed marks a write that our own code got wrong.
func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}
