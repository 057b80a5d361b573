package role

import (
	"errors"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
)

// Classify sorts what a request to the API server failed with; see
// controller.Definition.
func Classify(err error) controller.Class {
	switch {
	case errors.Is(err, kube.ErrMalformed):
		return controller.Final
	case errors.Is(err, kube.ErrConflict):
		return controller.Conflict
	case errors.Is(err, kube.ErrGone):
		return controller.Gone
	default:
		return controller.Retry
	}
}

// ClassifyLive is Classify for a role that reads live what it is about to write: that
// may be gone.
func ClassifyLive(err error) controller.Class {
	if errors.Is(err, kube.ErrNotFound) {
		return controller.Gone
	}
	return Classify(err)
}
