package kubetest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// settleWithin bounds the wait for a change of the server's own configuration.
// It looks for new policies once a second, and for new kinds about as often.
const settleWithin = 30 * time.Second

// deniedMessage tells a denial from a policy that could not be evaluated, which
// the server refuses with as well.
const deniedMessage = "denied by the test"

// Denial is a kind of write the API server refuses while it stands.
type Denial struct {
	// Operation is CREATE, UPDATE, DELETE or CONNECT; a patch is an UPDATE.
	Operation admissionv1.OperationType
	// Group and Resource as in a path: "" and "pods", "" and "pods/status",
	// "discovery.k8s.io" and "endpointslices".
	Group, Resource string
	// User is who is refused, such as "millrace:endpoints"; "" is everybody.
	User string
	// Namespace is where; "" is everywhere.
	Namespace string
	// Reason shapes the answer: Forbidden is 403 (the default), Invalid 422,
	// RequestEntityTooLarge 413.
	Reason metav1.StatusReason
}

// DenyVerb makes the API server refuse d, and returns once it does. remove lets
// such writes through again, and also returns only once that is so.
func (c *Cluster) DenyVerb(ctx context.Context, d Denial) (remove func(context.Context) error, err error) {
	client := c.Client()
	name := "kubetest-deny-" + rand.String(8)
	policies := client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	bindings := client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()

	if _, err := policies.Create(ctx, d.policy(name), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating admission policy: %w", err)
	}
	if _, err := bindings.Create(ctx, binding(name), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating admission policy binding: %w", err)
	}
	if err := awaitProbe(ctx, client, name, true); err != nil {
		return nil, fmt.Errorf("waiting until %s of %s is denied: %w", d.Operation, d.Resource, err)
	}
	return func(ctx context.Context) error {
		err := errors.Join(
			bindings.Delete(ctx, name, metav1.DeleteOptions{}),
			policies.Delete(ctx, name, metav1.DeleteOptions{}),
		)
		if err != nil {
			return fmt.Errorf("deleting admission policy: %w", err)
		}
		if err := awaitProbe(ctx, client, name, false); err != nil {
			return fmt.Errorf("waiting until %s of %s is allowed: %w", d.Operation, d.Resource, err)
		}
		return nil
	}, nil
}

// policy refuses the denial and, to everybody, the making of a ConfigMap of the
// policy's own name. That second half is what awaitProbe asks about: the two
// take effect together, and a dry run of it disturbs nothing.
func (d Denial) policy(name string) *admissionv1.ValidatingAdmissionPolicy {
	resource, sub, _ := strings.Cut(d.Resource, "/")
	denied := []string{
		"request.operation == " + strconv.Quote(string(d.Operation)),
		"request.resource.group == " + strconv.Quote(d.Group),
		"request.resource.resource == " + strconv.Quote(resource),
		// absent, and not empty, where the request is about the object itself
		"(has(request.subResource) ? request.subResource : '') == " + strconv.Quote(sub),
	}
	if d.User != "" {
		denied = append(denied, "request.userInfo.username == "+strconv.Quote(d.User))
	}
	if d.Namespace != "" {
		denied = append(denied, "request.namespace == "+strconv.Quote(d.Namespace))
	}
	probe := "request.resource.resource == 'configmaps' && request.name == " + strconv.Quote(name)
	reason := d.Reason
	if reason == "" {
		reason = metav1.StatusReasonForbidden
	}
	return &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: new(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{
				rule(d.Operation, d.Group, d.Resource),
				rule(admissionv1.Create, "", "configmaps"),
			}},
			Validations: []admissionv1.Validation{{
				Expression: "!((" + strings.Join(denied, " && ") + ") || (" + probe + "))",
				Message:    deniedMessage,
				Reason:     &reason,
			}},
		},
	}
}

func rule(operation admissionv1.OperationType, group, resource string) admissionv1.NamedRuleWithOperations {
	return admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{operation},
		Rule:       admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{resource}},
	}}
}

func binding(name string) *admissionv1.ValidatingAdmissionPolicyBinding {
	return &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        name,
			ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
}

// awaitProbe waits until the ConfigMap of that name is denied, or allowed. Only a
// denial by this very policy counts; any other error ends the wait.
func awaitProbe(ctx context.Context, client kubernetes.Interface, name string, denied bool) error {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	probe := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).
			Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		switch {
		case err == nil:
			return !denied, nil
		case strings.Contains(err.Error(), name) && strings.Contains(err.Error(), deniedMessage):
			return denied, nil
		default:
			return false, err
		}
	})
}
