package operator

import (
	"slices"
	"strings"

	"github.com/millrace-io/millrace/shared/event"
)

// kinds are the words a person may say for a kind besides resource.group; the
// first of each line is the kind's name here.
var kinds = [][]string{
	{"pods", "pod", "po"},
	{"nodes", "node", "no"},
	{"services", "service", "svc"},
	{"endpoints", "ep"},
	{"endpointslices.discovery.k8s.io", "endpointslices", "endpointslice", "eps"},
	{"namespaces", "namespace", "ns"},
	{"serviceaccounts", "serviceaccount", "sa"},
	{"configmaps", "configmap", "cm"},
	{"secrets", "secret"},
	{"resourcequotas", "resourcequota", "quota"},
	{"limitranges", "limitrange", "limits"},
	{"persistentvolumes", "persistentvolume", "pv"},
	{"persistentvolumeclaims", "persistentvolumeclaim", "pvc"},
	{"replicationcontrollers", "replicationcontroller", "rc"},
	{"deployments.apps", "deployments", "deployment", "deploy"},
	{"replicasets.apps", "replicasets", "replicaset", "rs"},
	{"statefulsets.apps", "statefulsets", "statefulset", "sts"},
	{"daemonsets.apps", "daemonsets", "daemonset", "ds"},
	{"jobs.batch", "jobs", "job"},
	{"cronjobs.batch", "cronjobs", "cronjob", "cj"},
	{"leases.coordination.k8s.io", "leases", "lease"},
}

// kindOf returns the kind that a word means; a word nobody knows means itself.
func kindOf(word string) event.Kind {
	word = strings.ToLower(word)
	for _, names := range kinds {
		if slices.Contains(names, word) {
			return event.Kind(names[0])
		}
	}
	return event.Kind(word)
}
