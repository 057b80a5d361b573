package e2e

import (
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// story is a history of one service and one pod, told in revisions a second
// apart.
type story struct {
	o  *observer
	at time.Time
}

func (s *story) add(object metav1.Object) {
	s.at = s.at.Add(time.Second)
	object.SetResourceVersion(strconv.Itoa(len(s.o.log) + 1))
	s.o.log = append(s.o.log, record{revision: revisionOf(object), at: s.at, object: object})
}

func (s *story) service(target int32, change ...func(*corev1.ServiceSpec)) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns", UID: "service"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "a"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(target)}},
		},
	}
	for _, c := range change {
		c(&svc.Spec)
	}
	s.add(svc)
}

func publishAll(s *corev1.ServiceSpec) { s.PublishNotReadyAddresses = true }

func selectB(s *corev1.ServiceSpec) { s.Selector["app"] = "b" }

func (s *story) pod(ready bool, label string) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	s.add(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "pod", Labels: map[string]string{"app": label}},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	})
}

// slice names the pod, ready or not, or nobody at all.
func (s *story) slice(names, ready bool, target int32) {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "s-0", Namespace: "ns",
			Labels:          map[string]string{discoveryv1.LabelServiceName: "s", discoveryv1.LabelManagedBy: ourManager},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Service", Name: "s", UID: "service", Controller: new(true)}},
		},
		Ports: []discoveryv1.EndpointPort{{Name: new(""), Protocol: new(corev1.ProtocolTCP), Port: &target}},
	}
	if names {
		slice.Endpoints = []discoveryv1.Endpoint{{
			Addresses: []string{"10.0.0.1"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "p", UID: types.UID("pod")},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		}}
	}
	s.add(slice)
}

// The detector itself: what it must see, and what it must not call a hole.
func TestHolesAreFound(t *testing.T) {
	tests := map[string]struct {
		tell        func(s *story)
		holes, late int
	}{
		"a pod that stays ready leaves and comes back": {holes: 1, tell: func(s *story) {
			s.slice(false, false, 80)
			s.slice(true, true, 80)
		}},
		"a pod that stays ready is called not ready": {holes: 1, tell: func(s *story) { s.slice(true, false, 80) }},
		"a pod that is not ready leaves": {tell: func(s *story) {
			s.pod(false, "a")
			s.slice(true, false, 80)
		}},
		"a pod that is selected no more leaves": {tell: func(s *story) {
			s.pod(true, "b")
			s.slice(false, false, 80)
		}},
		"a port changes, and slices with it": {tell: func(s *story) {
			s.service(81)
			s.slice(false, false, 80)
			s.slice(true, true, 81)
		}},
		"a pod leaves after a port has changed": {holes: 1, tell: func(s *story) {
			s.service(81)
			s.slice(false, false, 80)
			s.slice(true, true, 81)
			s.at = s.at.Add(time.Minute)
			s.slice(false, false, 81)
		}},
		"a slice answers late to what was so a moment ago": {late: 1, tell: func(s *story) {
			s.pod(false, "a")
			s.pod(true, "a")
			s.slice(true, false, 80) // to the first
			s.slice(true, true, 80)
		}},
		"what a slice has shown it unlearns": {late: 1, holes: 1, tell: func(s *story) {
			s.pod(false, "a")
			s.pod(true, "a")
			s.slice(true, false, 80)
			s.slice(true, true, 80)
			s.slice(true, false, 80) // nobody may know the first any more
		}},
		"a new pod is shown and unlearnt": {holes: 1, tell: func(s *story) {
			s.pod(false, "a")
			s.slice(true, false, 80)
			s.pod(true, "a")
			s.slice(true, true, 80)
			s.slice(true, false, 80)
		}},
		"a service of now beside a pod of before": {late: 1, tell: func(s *story) {
			s.service(80, publishAll)
			s.pod(false, "a")
			s.pod(true, "a")
			s.service(80)
			s.slice(true, false, 80) // to the pod that was not ready and this service
			s.slice(true, true, 80)
		}},
		"a service of now beside a pod of long ago": {holes: 1, tell: func(s *story) {
			s.service(80, publishAll)
			s.pod(false, "a")
			s.pod(true, "a")
			s.at = s.at.Add(time.Minute)
			s.service(80)
			s.slice(true, false, 80)
		}},
		"a pod of now beside a service of before": {late: 1, tell: func(s *story) {
			s.pod(true, "b")
			s.service(80, selectB)
			s.slice(false, false, 80)
		}},
		"a pod of now beside a service of long ago": {holes: 1, tell: func(s *story) {
			s.pod(true, "b")
			s.service(80, selectB)
			s.at = s.at.Add(time.Minute)
			s.slice(false, false, 80)
		}},
		"neither is so as to explain it": {holes: 1, tell: func(s *story) {
			s.service(80, publishAll)
			s.pod(true, "a")
			s.slice(true, false, 80)
		}},
		"listed again long after": {holes: 1, tell: func(s *story) {
			s.pod(false, "a")
			s.pod(true, "a")
			again := s.o.log[3]
			s.at = s.at.Add(time.Minute)
			again.at = s.at
			s.o.log = append(s.o.log, again) // it was so until a minute ago, not until now
			s.slice(true, false, 80)
		}},
		"a slice unlearns what it had long known": {holes: 1, tell: func(s *story) {
			s.pod(false, "a")
			s.pod(true, "a")
			s.at = s.at.Add(time.Minute)
			s.slice(true, true, 80)
			s.slice(true, false, 80)
		}},
		"nobody looked": {tell: func(s *story) {
			s.slice(false, false, 80)
			s.o.gaps = append(s.o.gaps, gap{3, 4})
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := &story{o: &observer{}, at: time.Now()}
			s.service(80)
			s.pod(true, "a")
			s.slice(true, true, 80)
			tt.tell(s)
			holes, late := s.o.holes(10 * time.Second)
			if len(holes) != tt.holes || late != tt.late {
				t.Errorf("holes() = %q, %d late; want %d, %d", holes, late, tt.holes, tt.late)
			}
		})
	}
}
