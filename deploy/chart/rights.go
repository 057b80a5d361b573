package chart

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Right is one verb on one resource, written
// resource[/subresource][.group][ name][ in namespace].
type Right struct{ Resource, Verb string }

// RightsOf are the rights, sorted, that the Roles and ClusterRoles of one name give
// among the objects.
func RightsOf(objects []*unstructured.Unstructured, name func(string) bool) (out []Right, err error) {
	for _, o := range objects {
		if !strings.HasSuffix(o.GetKind(), "Role") || !name(o.GetName()) {
			continue
		}
		var role rbacv1.ClusterRole // a Role has all of it that counts
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			return nil, fmt.Errorf("reading %s: %w", o.GetName(), err)
		}
		out = append(out, rights(o.GetNamespace(), role.Rules)...)
	}
	if len(out) == 0 {
		return nil, errors.New("there is no such role")
	}
	return sorted(out), nil
}

func rights(namespace string, rules []rbacv1.PolicyRule) (out []Right) {
	for _, r := range rules {
		for _, group := range r.APIGroups {
			for _, resource := range r.Resources {
				if group != "" {
					resource += "." + group
				}
				if len(r.ResourceNames) > 0 { // some objects of that name only
					resource += " " + strings.Join(r.ResourceNames, "+")
				}
				if namespace != "" {
					resource += " in " + namespace
				}
				for _, verb := range r.Verbs {
					out = append(out, Right{resource, verb})
				}
			}
		}
	}
	return out
}

// theKinds is how the watcher's README speaks of what a setting names.
const theKinds = "the kinds of "

// DocumentedRights are those in the table under "## Rights" of a role's README:
// | resource | verbs, and what more there is to say in brackets |. kinds are what
// the watcher carries.
func DocumentedRights(readme string, kinds []string) (out []Right) {
	_, section, _ := strings.Cut(readme, "\n## Rights\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 2 || strings.HasPrefix(cells[0], "---") || strings.TrimSpace(cells[0]) == "resource" {
			continue
		}
		resources := strings.Split(cells[0], ",")
		if strings.HasPrefix(strings.TrimSpace(cells[0]), theKinds) {
			resources = kinds
		}
		verbs, _, _ := strings.Cut(cells[1], "(")
		for verb := range strings.SplitSeq(verbs, ",") {
			for _, resource := range resources {
				out = append(out, Right{strings.TrimSpace(resource), strings.TrimSpace(verb)})
			}
		}
	}
	return sorted(out)
}

func sorted(all []Right) []Right {
	slices.SortFunc(all, func(a, b Right) int {
		return strings.Compare(a.Resource+" "+a.Verb, b.Resource+" "+b.Verb)
	})
	return slices.Compact(all)
}
