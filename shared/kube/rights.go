package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Right is one verb on one resource. An empty Namespace is all of them, or none for
// what has none; an empty Name is every object.
type Right struct {
	Verb, Group, Resource, Subresource string
	Namespace, Name                    string
}

// Rights are verbs on one resource, "pods" or "pods/status", in every namespace.
func Rights(group, resource string, verbs ...string) []Right {
	return RightsIn("", group, resource, verbs...)
}

// RightsIn are Rights in one namespace.
func RightsIn(namespace, group, resource string, verbs ...string) []Right {
	resource, subresource, _ := strings.Cut(resource, "/")
	out := make([]Right, len(verbs))
	for i, verb := range verbs {
		out[i] = Right{Verb: verb, Group: group, Resource: resource, Subresource: subresource, Namespace: namespace}
	}
	return out
}

// Object writes what the verb is about:
// resource[/subresource][.group][ name][ in namespace].
func (r Right) Object() string {
	s := r.Resource
	if r.Subresource != "" {
		s += "/" + r.Subresource
	}
	if r.Group != "" {
		s += "." + r.Group
	}
	if r.Name != "" {
		s += " " + r.Name
	}
	if r.Namespace != "" {
		s += " in " + r.Namespace
	}
	return s
}

// String is "delete pods".
func (r Right) String() string { return r.Verb + " " + r.Object() }

// asking is the right to ask for rights. Kubernetes gives it to everybody who has
// logged in (ClusterRole system:basic-user).
var asking = Right{Verb: "create", Group: authorizationv1.GroupName, Resource: "selfsubjectaccessreviews"}

// Lacks returns those of rights that the API server says we do not have. It waits
// for no rate limiter. Who may not even ask lacks that.
func (a *API) Lacks(ctx context.Context, rights []Right) (missing []Right, err error) {
	for _, r := range rights {
		allowed, err := a.allowed(ctx, r)
		switch {
		case errors.Is(err, ErrForbidden):
			return []Right{asking}, nil
		case err != nil:
			return nil, fmt.Errorf("asking whether we may %s: %w", r, err)
		case !allowed:
			missing = append(missing, r)
		}
	}
	return missing, nil
}

func (a *API) allowed(ctx context.Context, r Right) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: r.Verb, Group: r.Group, Resource: r.Resource, Subresource: r.Subresource, Namespace: r.Namespace, Name: r.Name,
		},
	}}
	answer, err := a.checks.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return false, Sort(err)
	}
	return answer.Status.Allowed, nil
}

// Forbidden receives after an answer 403 to any request of ours: a right has been
// taken away, or a policy said no. Answers between two receives count once.
func (a *API) Forbidden() <-chan struct{} { return a.forbidden }

// noteForbidden is told of every answer.
func noteForbidden(to chan<- struct{}, status int) {
	if status != http.StatusForbidden {
		return
	}
	select {
	case to <- struct{}{}:
	default: // told already
	}
}
