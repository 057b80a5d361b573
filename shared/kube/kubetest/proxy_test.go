package kubetest

import (
	"context"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// services makes them through one client and watches them through another.
type services struct {
	t      *testing.T
	ctx    context.Context
	direct kubernetes.Interface
	ns     string
	events watch.Interface
}

func watchServices(t *testing.T, c *Cluster, through *rest.Config) *services {
	t.Helper()
	s := &services{t: t, ctx: bounded(t), direct: c.Client(), ns: c.Namespace(t)}
	s.events = s.watch(through)
	t.Cleanup(s.events.Stop)
	return s
}

func (s *services) watch(cfg *rest.Config) watch.Interface {
	s.t.Helper()
	list, err := s.direct.CoreV1().Services(s.ns).List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Fatalf("listing: %v", err)
	}
	w, err := kubernetes.NewForConfigOrDie(cfg).CoreV1().Services(s.ns).
		Watch(s.ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		s.t.Fatalf("watching: %v", err)
	}
	return w
}

func (s *services) make(name string) {
	s.t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := s.direct.CoreV1().Services(s.ns).Create(s.ctx, svc, metav1.CreateOptions{}); err != nil {
		s.t.Fatalf("creating %s: %v", name, err)
	}
}

// expect reads the next event, which must be the making of name.
func (s *services) expect(name string) {
	s.t.Helper()
	select {
	case e := <-s.events.ResultChan():
		if svc, ok := e.Object.(*corev1.Service); !ok || svc.Name != name {
			s.t.Fatalf("event = %s %v, want the service %s", e.Type, e.Object, name)
		}
	case <-s.ctx.Done():
		s.t.Fatalf("no event for %s: %v", name, s.ctx.Err())
	}
}

// expectEnd reads until the watch ends, and returns client-go's complaint if it
// had one.
func (s *services) expectEnd() (complaint error) {
	s.t.Helper()
	for {
		select {
		case e, open := <-s.events.ResultChan():
			if !open {
				return complaint
			}
			if e.Type != watch.Error {
				s.t.Fatalf("event = %s %v, want the end of the watch", e.Type, e.Object)
			}
			complaint = apierrors.FromObject(e.Object)
		case <-s.ctx.Done():
			s.t.Fatalf("the watch goes on: %v", s.ctx.Err())
		}
	}
}

func encodings() map[string]string {
	return map[string]string{"as JSON": "application/json", "as protobuf": "application/vnd.kubernetes.protobuf"}
}

func TestAProxyHoldsEventsBackAndReleasesThemInOrder(t *testing.T) {
	c := Shared(t)
	for name, contentType := range encodings() {
		t.Run(name, func(t *testing.T) {
			p := StartProxy(t, c)
			cfg := p.Config(RoleWatcher)
			cfg.ContentType = contentType
			s := watchServices(t, c, cfg)
			s.make("before")
			s.expect("before")

			p.Hold("services")
			s.make("held-1")
			s.make("held-2")
			// A second watch, not through the proxy, shows that the server has sent
			// both by now; only then does silence mean anything.
			control := s.watch(c.Admin())
			defer control.Stop()
			s.make("held-3")
			<-control.ResultChan()
			select {
			case e := <-s.events.ResultChan():
				t.Fatalf("event %v came through a held watch", e)
			default:
			}

			p.Release("services")
			for _, name := range []string{"held-1", "held-2", "held-3"} {
				s.expect(name)
			}
		})
	}
}

func TestAProxyHoldsOnlyTheResourceItIsToldTo(t *testing.T) {
	c := Shared(t)
	p := StartProxy(t, c)
	p.Hold("pods")
	s := watchServices(t, c, p.Config(RoleWatcher))
	s.make("passes")
	s.expect("passes")
}

func TestAProxyDelaysEvents(t *testing.T) {
	const late = 300 * time.Millisecond
	c := Shared(t)
	p := StartProxy(t, c)
	s := watchServices(t, c, p.Config(RoleWatcher))
	p.Delay("services", late)
	start := time.Now()
	s.make("late")
	s.expect("late")
	if took := time.Since(start); took < late {
		t.Errorf("the event took %s, want at least %s", took, late)
	}
}

func TestAProxyFinishesAWatchAndLetsTheNextOneIn(t *testing.T) {
	tests := map[string]struct {
		finish func(p *Proxy, resource string)
		clean  bool
	}{
		"cut, it ends in the middle": {(*Proxy).Cut, false},
		"ended, it ends cleanly":     {(*Proxy).End, true},
	}
	c := Shared(t)
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := StartProxy(t, c)
			s := watchServices(t, c, p.Config(RoleWatcher))
			tt.finish(p, "services")
			if err := s.expectEnd(); (err == nil) != tt.clean {
				t.Errorf("complaint = %v, want clean = %t", err, tt.clean)
			}
			s.events = s.watch(p.Config(RoleWatcher))
			s.make("after")
			s.expect("after")
		})
	}
}

func TestAProxyRefusesWatchesUntilItAcceptsThemAgain(t *testing.T) {
	c := Shared(t)
	p := StartProxy(t, c)
	s := watchServices(t, c, p.Config(RoleWatcher))
	p.Refuse("services")
	s.expectEnd()
	client := kubernetes.NewForConfigOrDie(p.Config(RoleWatcher))
	if _, err := client.CoreV1().Services(s.ns).Watch(s.ctx, metav1.ListOptions{}); err == nil {
		t.Error("a refused watch was let through")
	}
	p.Accept("services")
	s.events = s.watch(p.Config(RoleWatcher))
	s.make("after")
	s.expect("after")
}

func TestAProxyThatIsDownAnswersNothing(t *testing.T) {
	c := Shared(t)
	p := StartProxy(t, c)
	s := watchServices(t, c, p.Config(RoleWatcher))
	client := kubernetes.NewForConfigOrDie(p.Config(RoleWatcher))
	p.Down()
	s.expectEnd()
	if _, err := client.CoreV1().Services(s.ns).List(s.ctx, metav1.ListOptions{}); err == nil {
		t.Error("a list was answered")
	}
	p.Up()
	if _, err := client.CoreV1().Services(s.ns).List(s.ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("listing once it is up again: %v", err)
	}
}

func TestAKubeconfigThroughTheProxyWorks(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	p := StartProxy(t, c)
	file, err := p.Kubeconfig(RoleWatcher)
	if err != nil {
		t.Fatalf("Kubeconfig() = %v", err)
	}
	client, err := clientFromFile(file)
	if err != nil {
		t.Fatalf("reading %s: %v", file, err)
	}
	if _, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("listing pods: %v", err)
	}
}

func clientFromFile(file string) (kubernetes.Interface, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		return nil, err
	}
	return kubernetes.NewForConfig(cfg)
}

func TestAProxyPutsTheServersClockAheadOrBehind(t *testing.T) {
	c := Shared(t)
	p := StartProxy(t, c)
	client, err := rest.HTTPClientFor(p.Config(RoleWatcher))
	if err != nil {
		t.Fatal(err)
	}
	for _, ahead := range []time.Duration{0, 10 * time.Minute, -10 * time.Minute} {
		p.Ahead(ahead)
		req, err := http.NewRequestWithContext(bounded(t), http.MethodGet, p.server.URL+"/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		date, err := http.ParseTime(resp.Header.Get("Date"))
		if off := time.Until(date.Add(-ahead)); err != nil || off.Abs() > 5*time.Second {
			t.Errorf("asked to be %s ahead, the server's clock is wrong by %s: %v", ahead, off, err)
		}
	}
}
