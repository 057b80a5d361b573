package endpoints

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// ⚠ The predecessor's last writes may not be in the cache of who takes over:
// the first write after a claim is decided on a live read.
func TestTheFirstWriteAfterAClaimIsDecidedOnALiveRead(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		live   bool // as the frame has it after a claim
		writes string
		sizes  string
	}{
		"with it, the predecessor's slices are found":    {true, "1 read", "2 2 1"},
		"without it they would be asked for at creation": {false, "1 create 1 read", "2 2 1"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 2)
			objects := []object{r.service("web")}
			for i := range 5 {
				objects = append(objects, r.pod("web", i))
			}
			r.put(objects...)
			r.sync("web")

			r.claim() // a successor, to whom the slices have not come yet
			r.put(objects...)
			r.p.live[r.key("web")] = tt.live
			r.wire.Take()
			err := r.reconcile("web")
			if got := r.count("POST", "create", "PUT", "update", "DELETE", "delete", "GET", "read"); got != tt.writes {
				t.Errorf("sent %q, want %q", got, tt.writes)
			}
			if tt.live && err != nil {
				t.Errorf("Reconcile() = %v", err)
			}
			if !tt.live && classify(err) != controller.Conflict {
				t.Errorf("Reconcile() = %v, want a conflict, after which the frame asks for a live read", err)
			}
			if got := r.sizes("web"); got != tt.sizes {
				t.Errorf("slices of %s, want %s", got, tt.sizes)
			}
			if tt.live && r.p.live[r.key("web")] {
				t.Error("the frame was not told that a live read was made")
			}
		})
	}
}

// The dangerous half of the same: the successor does not know a slice under a
// name that nobody would collide with, and would make its endpoints twice.
func TestASuccessorMakesNoEndpointTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	s := r.service("web")
	pods := r.fleet("web", 0, 3)
	r.make(r.slice("web-x7k2p", s, pods)) // as upstream names it
	r.put(s)
	r.p.live[r.key("web")] = true
	r.sync("web")
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q, want nothing", got)
	}
	if got := r.sizes("web"); got != "3" {
		t.Errorf("slices of %s, want 3", got)
	}
}

func TestWithNothingToWriteNothingIsReadLive(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.fleet("web", 0, 3)
	r.put(r.service("web"))
	r.sync("web")
	r.p.live[r.key("web")] = true
	r.wire.Take()
	r.sync("web")
	if got := r.wire.Take(); got != nil {
		t.Errorf("sent %v", got)
	}
	if !r.p.live[r.key("web")] {
		t.Error("the frame was told of a live read that was not made")
	}
}

// ⚠ Two owners for a moment: the second is told so by the name.
func TestTwoOwnersCreateOneSlice(t *testing.T) {
	t.Parallel()
	first := newRig(t, 100)
	second := &rig{TB: t, ns: first.ns, admin: first.admin}
	second.start(100)
	for _, r := range []*rig{first, second} {
		r.put(r.service("web"), r.pod("web", 0))
		r.p.live[r.key("web")] = true
	}
	// The second reads live, and before it creates, the first does.
	second.wire.Meets(func(r *http.Request) int {
		if r.Method == http.MethodPost {
			second.wire.Meets(nil)
			first.sync("web")
		}
		return 0
	})
	if err := second.reconcile("web"); classify(err) != controller.Conflict {
		t.Errorf("Reconcile() = %v, want a conflict", err)
	}
	if got := second.heard(); got != nil {
		t.Errorf("events %q, want none: our own caution is nobody's trouble", got)
	}
	second.wire.Take()
	if err := second.reconcile("web"); err != nil {
		t.Errorf("Reconcile() = %v", err)
	}
	if got := second.count("GET", "read", "POST", "create", "PUT", "update", "DELETE", "delete"); got != "1 read" {
		t.Errorf("sent %q, want 1 read", got)
	}
	if got := first.sizes("web"); got != "1" {
		t.Errorf("slices of %s, want 1", got)
	}
}

// Architecture 6.7: conflict: read live, decide on that, write.
func TestAConflictIsAnsweredWithALiveRead(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(r *rig) // what makes a write necessary
		meet   func(s *discoveryv1.EndpointSlice)
		want   string // the writes of the second try
	}{
		"an update meets a newer object": {
			func(r *rig) { r.put(r.pod("web", 0, unready)) },
			func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"x": "y"} },
			"1 update",
		},
		"a recycled slice is not overwritten": {
			func(r *rig) {
				r.put(r.service("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(1) }))
			},
			func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"x": "y"} },
			"1 update",
		},
		"nor one that was given to others meanwhile": {
			func(r *rig) {
				r.put(r.service("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(1) }))
			},
			func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "me" },
			"1 create",
		},
		"a deletion meets a newer object": {
			func(r *rig) {
				r.put(r.service("web", func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }))
			},
			func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"x": "y"} },
			"1 delete",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.put(r.service("web"), r.pod("web", 0))
			r.sync("web")
			met := r.slicesOf("web")[0].Name
			tt.change(r)
			edited := r.edit(met, tt.meet) // and the cache does not know
			if err := r.reconcile("web"); classify(err) != controller.Conflict {
				t.Fatalf("Reconcile() = %v, want a conflict", err)
			}
			if now, err := r.admin.DiscoveryV1().EndpointSlices(r.ns).Get(r.Context(), met, metav1.GetOptions{}); err != nil || now.ResourceVersion != edited.ResourceVersion {
				t.Fatalf("the slice was overwritten: %v", err)
			}
			if got := r.heard(); got != nil {
				t.Errorf("events %q, want none", got)
			}
			r.wire.Take()
			if err := r.reconcile("web"); err != nil {
				t.Fatalf("the second Reconcile() = %v", err)
			}
			if got := r.writes(); got != tt.want {
				t.Errorf("wrote %q, want %q", got, tt.want)
			}
		})
	}
}

// A slice made anew under its name is another object.
func TestADeletionNamesTheUID(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.put(r.service("web"), r.pod("web", 0))
	r.sync("web")
	old := r.slicesOf("web")[0]
	client := r.admin.DiscoveryV1().EndpointSlices(r.ns)
	if err := client.Delete(r.Context(), old.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	anew := old.DeepCopy()
	anew.UID, anew.ResourceVersion = "", ""
	r.make(anew)
	r.put(r.service("web", onlyIPv6))
	err := r.reconcile("web")
	if class := classify(err); class != controller.Gone && class != controller.Conflict {
		t.Errorf("Reconcile() = %v, class %d", err, class)
	}
	if _, err := client.Get(r.Context(), old.Name, metav1.GetOptions{}); err != nil {
		t.Errorf("the new slice of the name: %v", err)
	}
}

// Architecture, section 10: every update and deletion carries UID and
// resourceVersion; recycled ones too.
func TestEveryWriteCarriesPreconditions(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	s := r.service("web")
	pods := r.fleet("web", 0, 6)
	r.put(s)
	r.sync("web") // 2 2 2
	r.put(r.pod("web", 0, unready))
	r.sync("web") // an update
	r.put(r.service("web", func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(1) }))
	r.drop(pods[1], pods[2])
	r.sync("web") // recycled, and deleted
	seen := map[string]int{}
	for _, sent := range r.wire.Take() {
		seen[sent.Verb]++
		switch body := sent.Object().(type) {
		case *discoveryv1.EndpointSlice:
			if sent.Verb == http.MethodPut && (body.UID == "" || body.ResourceVersion == "") {
				t.Errorf("update of %s with UID %q and version %q", body.Name, body.UID, body.ResourceVersion)
			}
			if sent.Verb == http.MethodPost && (body.Name == "" || body.GenerateName != "") {
				t.Errorf("creation of %q from %q: two owners would not meet", body.Name, body.GenerateName)
			}
		case *metav1.DeleteOptions:
			if p := body.Preconditions; p == nil || p.UID == nil || p.ResourceVersion == nil {
				t.Errorf("deletion with preconditions %v", body.Preconditions)
			}
		default:
			t.Errorf("%s %s with a %T", sent.Verb, sent.Path, body)
		}
	}
	if diff := cmp.Diff(map[string]int{"POST": 3, "PUT": 3, "DELETE": 1}, seen); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

// What the frame is told: each write as it is afterwards.
func TestTheFrameIsToldOfEveryWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	pods := r.fleet("web", 0, 4)
	r.put(r.service("web"))
	r.sync("web")
	expect := func(when string, want map[string]int) {
		t.Helper()
		got := map[string]int{}
		live := map[event.Key]*discoveryv1.EndpointSlice{}
		for _, s := range r.list() {
			live[event.Key{Namespace: s.Namespace, Name: s.Name}] = s
		}
		for _, w := range r.p.wrote {
			s := live[w.Key]
			switch {
			case w.Deleted && s == nil:
				got["gone"]++
			case !w.Deleted && s != nil && string(s.UID) == w.UID && s.ResourceVersion == fmt.Sprint(w.Version):
				got["there"]++
			default:
				t.Errorf("%s: told of %+v, there is %v", when, w, s != nil)
			}
			if w.Kind != sliceKind {
				t.Errorf("%s: told of kind %s", when, w.Kind)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: told (-want +got):\n%s", when, diff)
		}
		r.p.wrote = nil
	}
	expect("two creations", map[string]int{"there": 2})
	r.put(r.pod("web", 0, unready))
	r.sync("web")
	expect("an update", map[string]int{"there": 1})
	for _, p := range pods {
		r.drop(p)
	}
	r.sync("web")
	expect("a recycled slice and a deletion", map[string]int{"there": 1, "gone": 1})
	r.put(r.pod("web", 0), r.pod("web", 1), r.pod("web", 2))
	r.wire.Meets(func(req *http.Request) int {
		if req.Method == http.MethodPost {
			return 0
		}
		return roletest.NoAnswer
	})
	if err := r.reconcile("web"); err == nil {
		t.Error("Reconcile() = nil, want an error")
	}
	expect("a creation, and an update that fails", map[string]int{"there": 1})
}

// What the frame says no to is not sent, and is nobody's trouble.
func TestTheGuardIsAsked(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err  error
		want controller.Class
	}{
		"another holds the partition": {controller.ErrNotHolder, controller.NotHolder},
		"inputs are incomplete":       {controller.ErrNotSynced, controller.Waiting},
		"an input is too old":         {&controller.StaleError{Kind: pods, Danger: controller.Harmless}, controller.Waiting},
		"shadow mode":                 {controller.ErrShadow, controller.Shadow},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.put(r.service("web", dualStack), r.pod("web", 0))
			r.p.refuse = tt.err
			err := r.reconcile("web")
			if got := classify(err); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("Reconcile() = %v, class %d, want class %d", err, got, tt.want)
			}
			if got := r.wire.Take(); got != nil {
				t.Errorf("sent %v", got)
			}
			if got := r.heard(); got != nil {
				t.Errorf("events %q, want none", got)
			}
			r.p.refuse = nil
			r.sync("web")
			if got := r.sizes("web"); got != "1 0" {
				t.Errorf("slices of %s, want 1 0", got)
			}
		})
	}
}

// Half an input must not shrink a slice: a key waits while something it reads
// cannot be read.
func TestOpaqueInputsWait(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		hide  func(r *rig) object
		waits bool
	}{
		"the service":                               {func(r *rig) object { return r.service("web") }, true},
		"a pod of it":                               {func(r *rig) object { return r.pod("web", 0) }, true},
		"a pod that might be its":                   {func(r *rig) object { return r.pod("other", 0) }, true},
		"a slice of it":                             {func(r *rig) object { return r.slicesOf("web")[0] }, true},
		"the node of a pod":                         {func(*rig) object { return node("n1", "") }, true},
		"another service":                           {func(r *rig) object { return r.service("other") }, false},
		"a node without pods of it":                 {func(*rig) object { return node("n2", "") }, false},
		"a pod of another namespace":                {func(r *rig) object { return r.pod("web", 0, func(p *corev1.Pod) { p.Namespace = "elsewhere" }) }, false},
		"a pod, and the service is gone":            {func(r *rig) object { r.drop(r.service("web")); return r.pod("other", 0) }, false},
		"a pod, and the service is no more of ours": {func(r *rig) object { r.put(r.service("web", withoutSelector)); return r.pod("other", 0) }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			pods := r.fleet("web", 0, 2)
			r.put(r.service("web"))
			r.sync("web")
			before := told(r.slicesOf("web"))
			hidden := tt.hide(r)
			r.hide(hidden)
			r.drop(pods[1])
			r.wire.Take()
			err := r.reconcile("web")
			switch {
			case tt.waits && classify(err) != controller.Waiting:
				t.Errorf("Reconcile() = %v, want to wait", err)
			case !tt.waits && err != nil:
				t.Errorf("Reconcile() = %v, want nil", err)
			}
			if got := r.writes(); tt.waits && got != "" {
				t.Errorf("wrote %s", got)
			}
			if got := r.heard(); got != nil {
				t.Errorf("events %q, want none", got)
			}
			if !tt.waits {
				return
			}
			if diff := cmp.Diff(before, told(r.slicesOf("web"))); diff != "" {
				t.Errorf("slices tell (-want +got):\n%s", diff)
			}
			r.put(hidden)
			r.sync("web")
			if got := r.sizes("web"); got != "1" {
				t.Errorf("slices of %s, want 1", got)
			}
		})
	}
}

// D5.7, D2.5: trouble with the API server is told on the service, and tried
// again.
func TestTroubleIsTold(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		status int
		told   bool
	}{
		"a server that is down":   {roletest.NoAnswer, true},
		"a policy that says no":   {http.StatusForbidden, true},
		"a slice that is invalid": {http.StatusUnprocessableEntity, true},
		"too many requests":       {http.StatusTooManyRequests, true},
		"an internal error":       {http.StatusInternalServerError, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.put(r.service("web"), r.pod("web", 0))
			r.wire.Answer(http.MethodPost, tt.status)
			err := r.reconcile("web")
			if classify(err) != controller.Retry {
				t.Errorf("Reconcile() = %v, want a retry", err)
			}
			if got := r.heard(); len(got) != 1 || !strings.HasPrefix(got[0], "Warning FailedToUpdateEndpointSlices ") {
				t.Errorf("events %q, want one FailedToUpdateEndpointSlices", got)
			}
			r.wire.Answer("", 0)
			r.sync("web")
			if got := r.sizes("web"); got != "1" {
				t.Errorf("slices of %s, want 1", got)
			}
		})
	}
}

// D5.7: stop at the first error; creations come first, so that no endpoint is
// taken away before it is elsewhere.
func TestWritesStopAtTheFirstError(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	pods := r.fleet("web", 0, 4)
	r.put(r.service("web"))
	r.sync("web")
	r.drop(pods[0], pods[1])
	r.fleet("web", 4, 9)
	r.wire.Take()
	r.wire.Answer(http.MethodPut, http.StatusInternalServerError)
	if err := r.reconcile("web"); err == nil {
		t.Fatal("Reconcile() = nil, want an error")
	}
	var verbs []string
	for _, s := range r.wire.Take() {
		verbs = append(verbs, s.Verb)
	}
	if diff := cmp.Diff([]string{"POST", "POST", "PUT"}, verbs); diff != "" {
		t.Errorf("sent (-want +got):\n%s", diff)
	}
}

// A namespace that is ending takes nothing new, and that is no failure (D5.7).
// What fails besides is one.
func TestANamespaceThatIsEnding(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	pods := r.fleet("web", 0, 2)
	r.put(r.service("web"))
	r.sync("web")
	r.end()

	t.Log("D5.7: a creation refused is silence, and the key is done")
	r.put(r.service("new"))
	err := r.reconcile("new")
	if class := classify(err); err != nil && class != controller.Shadow {
		t.Errorf("Reconcile() = %v, class %d", err, class)
	}
	if got := r.heard(); got != nil {
		t.Errorf("events %q, want none", got)
	}

	t.Log("updates go on")
	r.drop(pods[0])
	r.sync("web")
	if got := r.sizes("web"); got != "1" {
		t.Errorf("slices of %s, want 1", got)
	}

	t.Log("beside a creation refused, an update that fails is tried again")
	r.put(r.service("web", dualStack))
	r.drop(pods[1])
	r.wire.Answer(http.MethodPut, http.StatusInternalServerError)
	if err := r.reconcile("web"); classify(err) != controller.Retry {
		t.Errorf("Reconcile() = %v, class %d, want a retry", err, classify(err))
	}
	r.wire.Answer("", 0)

	t.Log("and so is a pod on an unknown node")
	r.put(r.pod("web", 2, on("gone")))
	if err := r.reconcile("web"); classify(err) != controller.Retry {
		t.Errorf("Reconcile() = %v, class %d, want a retry", err, classify(err))
	}
}

// end makes the namespace a terminating one and waits until the API server
// refuses to create in it.
func (r *rig) end() {
	r.Helper()
	if err := r.admin.CoreV1().Namespaces().Delete(r.Context(), r.ns, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
	probe := r.slice("probe", r.service("web"), nil)
	err := wait.PollUntilContextTimeout(r.Context(), 20*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := r.admin.DiscoveryV1().EndpointSlices(r.ns).Create(ctx, probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return errors.Is(kube.Sort(err), kube.ErrNamespaceTerminating), nil
	})
	if err != nil {
		r.Fatal(err)
	}
}

// A name taken by others is passed over.
func TestANameThatOthersHave(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*discoveryv1.EndpointSlice){
		"another manager":         func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "me" },
		"another service":         func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "other" },
		"nobody, without a label": func(s *discoveryv1.EndpointSlice) { s.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			s := r.service("web")
			r.make(r.slice(kube.SliceName("web", string(s.UID), discoveryv1.AddressTypeIPv4, 0), s, nil, change))
			r.put(s, r.pod("web", 0))
			r.sync("web")
			all := r.slicesOf("web")
			if len(all) != 1 || all[0].Name != kube.SliceName("web", string(s.UID), discoveryv1.AddressTypeIPv4, 1) {
				t.Errorf("%d slices, want one under the next name", len(all))
			}
		})
	}
}

// What is read from a cache is shared: nothing of it may be changed.
func TestTheCacheIsNotChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.fleet("web", 0, 5, on("za"))
	r.put(r.service("web"), node("za", "a"))
	r.sync("web")
	r.put(r.service("web", func(s *corev1.Service) {
		s.Spec.TrafficDistribution = new("PreferClose")
		labelled("tier", "front")(s)
	}))
	r.put(r.pod("web", 0, on("za"), unready))
	snap := gather(r.p, r.key("web"))
	was := gather(r.p, r.key("web"))
	was.Service = was.Service.DeepCopy()
	for i := range was.Pods {
		was.Pods[i] = was.Pods[i].DeepCopy()
	}
	for i := range was.Slices {
		was.Slices[i] = was.Slices[i].DeepCopy()
	}
	if err := r.reconcile("web"); err != nil {
		t.Fatal(err)
	}
	for i := range was.Pods { // both are in the order of a map
		for _, p := range snap.Pods {
			if p.Name == was.Pods[i].Name && cmp.Diff(p, was.Pods[i]) != "" {
				t.Errorf("pod %s was changed", p.Name)
			}
		}
	}
	for i := range was.Slices {
		for _, s := range snap.Slices {
			if s.Name == was.Slices[i].Name && cmp.Diff(s, was.Slices[i]) != "" {
				t.Errorf("slice %s was changed: %s", s.Name, cmp.Diff(s, was.Slices[i]))
			}
		}
	}
	if diff := cmp.Diff(was.Service, snap.Service); diff != "" {
		t.Errorf("the service was changed: %s", diff)
	}
}

func TestClassify(t *testing.T) {
	tests := map[string]struct {
		err  error
		want controller.Class
	}{
		"not ours":                    {controller.ErrNotHolder, controller.NotHolder},
		"refused because not ours":    {fmt.Errorf("%w: %w", kube.ErrRefused, controller.ErrNotHolder), controller.NotHolder},
		"incomplete":                  {controller.ErrNotSynced, controller.Waiting},
		"too old":                     {controller.ErrStale, controller.Waiting},
		"unreadable":                  {controller.ErrOpaque, controller.Waiting},
		"shadow":                      {controller.ErrShadow, controller.Shadow},
		"changed":                     {kube.ErrConflict, controller.Conflict},
		"live first":                  {controller.ErrLiveFirst, controller.Conflict},
		"gone":                        {kube.ErrGone, controller.Gone},
		"malformed by us":             {kube.ErrMalformed, controller.Final},
		"the namespace ends":          {kube.ErrNamespaceTerminating, controller.Shadow},
		"forbidden is tried again":    {kube.ErrForbidden, controller.Retry},
		"invalid is tried again":      {kube.ErrInvalid, controller.Retry},
		"throttled is tried again":    {kube.ErrThrottled, controller.Retry},
		"unavailable is tried again":  {kube.ErrUnavailable, controller.Retry},
		"what is not known, the same": {errors.New("x"), controller.Retry},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := classify(fmt.Errorf("doing: %w", tt.err)); got != tt.want {
				t.Errorf("classify() = %d, want %d", got, tt.want)
			}
		})
	}
}
