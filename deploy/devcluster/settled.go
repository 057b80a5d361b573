package main

import (
	"context"
	_ "embed" // for settled
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// settled are rights nobody uses; see there.
//
//go:embed settled.yaml
var settled []byte

// awaitSettled returns once the authorizer knows every right applied so far.
func awaitSettled(ctx context.Context, cfg *rest.Config) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	for _, may := range []authorizationv1.SubjectAccessReviewSpec{
		{NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: "/devcluster-settled", Verb: "get"}},
		{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: metav1.NamespaceSystem, Verb: "get", Resource: "configmaps", Name: "devcluster-settled",
		}},
	} {
		may.User = "devcluster:settled"
		review := &authorizationv1.SubjectAccessReview{Spec: may}
		err := wait.PollUntilContextCancel(ctx, 10*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			got, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
			return err == nil && got.Status.Allowed, err
		})
		if err != nil {
			return fmt.Errorf("waiting for the rights to take effect: %w", err)
		}
	}
	return nil
}
