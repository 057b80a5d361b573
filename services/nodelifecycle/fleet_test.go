package nodelifecycle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/rates"
	"github.com/millrace-io/millrace/shared/role/roletest"
	"github.com/millrace-io/millrace/shared/silence"
)

// fleet is several members over one API server, all in one process and under fake
// time. The server holds nodes and nothing else; a real one needs real time. What
// it holds comes to each member after a while of its own, as do the facts; tokens
// are to be had at any time.
type fleet struct {
	t       testing.TB
	policy  policy
	facts   *roletest.Facts
	members []*member
	began   time.Time
	delay   time.Duration // the longest that news take

	mu    sync.Mutex
	rng   *rand.Rand
	rev   int
	nodes map[string]*corev1.Node
	beats map[string]time.Time // the last
	mute  map[string]bool
	taken []string // NoExecute taints: when, and of whom
	asked int      // for tokens
}

// member is one of them, and the frame that it runs in.
type member struct {
	f      *fleet
	w      *roletest.World
	s      *nodeLifecycle
	cancel context.CancelFunc
	sinks  map[int]event.DigestSink
	tasks  sync.WaitGroup

	mu    sync.Mutex
	due   map[event.Key]bool
	kick  chan struct{}
	feeds map[string]chan delivery
}

type delivery struct {
	n  *corev1.Node
	at time.Time
}

func newFleet(t testing.TB, seed uint64, delay time.Duration) *fleet {
	f := &fleet{
		t: t, policy: defaults(), began: time.Now(), delay: delay, rng: rand.New(rand.NewPCG(seed, 7)),
		nodes: map[string]*corev1.Node{}, beats: map[string]time.Time{}, mute: map[string]bool{},
	}
	f.facts = roletest.NewFacts(f.late)
	return f
}

// late is how long one piece of news takes.
func (f *fleet) late() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.rng.Int64N(int64(f.delay)))
}

// add makes a node that beats.
func (f *fleet) add(name string, options ...nodeOption) {
	n := node(name, append(options, healthy)...)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.store(n)
	f.beats[name] = time.Now()
}

// store keeps a node and sends it out. f.mu is held.
func (f *fleet) store(n *corev1.Node) {
	f.rev++
	n.ResourceVersion = strconv.Itoa(f.rev)
	f.nodes[n.Name] = n
	for _, m := range f.members {
		m.send(n, time.Duration(f.rng.Int64N(int64(f.delay))))
	}
}

// silence makes nodes silent; wake makes them beat again and say so.
func (f *fleet) silence(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		f.mute[name] = true
	}
}

func (f *fleet) wake(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.mute, name)
	f.beats[name] = time.Now()
	n := f.nodes[name].DeepCopy()
	for i := range n.Status.Conditions {
		c := &n.Status.Conditions[i]
		c.Status, c.LastHeartbeatTime = "False", metav1.Now()
		if c.Type == corev1.NodeReady {
			c.Status = "True"
		}
	}
	f.store(n)
}

func (f *fleet) names() (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name := range f.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// watch is the watcher: beats, and a digest of each partition once a second.
func (f *fleet) watch(ctx context.Context, partitions int) {
	for counter := uint64(1); roletest.Sleep(ctx, time.Second); counter++ {
		f.mu.Lock()
		digests := make([]beat.Digest, partitions)
		for name, n := range f.nodes {
			if !f.mute[name] {
				f.beats[name] = time.Now()
			}
			d := &digests[partition.OfKey(event.Key{Name: name}, partitions)]
			d.Beats = append(d.Beats, beat.Beat{
				Node: name, UID: string(n.UID), Heartbeat: kube.Heartbeat(n), Age: time.Since(f.beats[name]),
			})
		}
		members := slices.Clone(f.members)
		f.mu.Unlock()
		for i := range digests {
			d := &digests[i]
			d.Epoch, d.Counter, d.At = 1, counter, time.Since(f.began)
			slices.SortFunc(d.Beats, func(a, b beat.Beat) int { return strings.Compare(a.Node, b.Node) })
			body, err := (&beat.Encoder{}).Encode(*d)
			if err != nil {
				f.t.Error(err)
			}
			for _, m := range members {
				if sink := m.sinks[i]; sink != nil {
					sink.Digest(i, counter, body)
				}
			}
		}
	}
}

// start makes a member that holds some of the partitions.
func (f *fleet) start(partitions int, held ...int) *member {
	ctx, cancel := context.WithCancel(f.t.Context())
	m := &member{
		f: f, w: newWorld(partitions), cancel: cancel, sinks: map[int]event.DigestSink{},
		due: map[event.Key]bool{}, kick: make(chan struct{}, 1), feeds: map[string]chan delivery{},
	}
	api, err := kube.ConnectTo(&rest.Config{Host: "http://api", Transport: f}, kube.Config{QPS: -1}, "millrace-nodelifecycle", nil, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	s := newNodeLifecycle(ctx, f.policy, api, kube.WriteOptions{Manager: "millrace-nodelifecycle"}, &record.FakeRecorder{})
	s.partitions = partitions
	s.registered, s.zones = factsOf(f.facts)
	s.evictions = newEvictor(ctx, &s.policy, func(string, float64) bucket { return always{f} }, s.census)
	sinks := ears{make(chan event.DigestSink, 1)}
	s.silences = silence.New(sinks, role, nil, nil)
	roletest.Replace(s.silences, "now", func() time.Duration { return time.Since(f.began) })
	s.metrics = newMetrics(nil, s)
	s.log = slog.New(slog.DiscardHandler)
	m.s = s
	m.tasks.Go(func() { s.zones.view.Run(ctx) })

	var recs []*reconciler
	for _, i := range held {
		p := m.w.Partition(i)
		p.OnChange = func(c cache.Change) { m.wake(s.keys(p, c)...) }
		p.OnWake = func(key event.Key) { m.wake(key) }
		recs = append(recs, s.forPartition(p))
		m.sinks[i] = <-sinks.sink
	}
	// All nodes have come before anything is decided: the frame sees to that.
	f.mu.Lock()
	for _, n := range f.nodes {
		m.w.Put(f.t, n)
	}
	f.members = append(f.members, m)
	f.mu.Unlock()
	for _, r := range recs {
		m.wake(s.all(r.p)...)
		m.tasks.Go(func() {
			<-ctx.Done()
			_ = r.Close()
		})
		m.tasks.Go(func() { m.work(ctx, r) })
	}
	return m
}

func (m *member) stop() {
	m.f.mu.Lock()
	m.f.members = slices.DeleteFunc(m.f.members, func(other *member) bool { return other == m })
	m.f.mu.Unlock()
	m.cancel()
	m.tasks.Wait()
}

// send brings a node to this member, in the order in which it was written.
func (m *member) send(n *corev1.Node, after time.Duration) {
	feed := m.feeds[n.Name]
	if feed == nil {
		feed = make(chan delivery, 1000)
		m.feeds[n.Name] = feed
		m.tasks.Go(func() {
			for {
				select {
				case d := <-feed:
					if !roletest.Sleep(m.s.background, time.Until(d.at)) {
						return
					}
					m.w.Put(m.f.t, d.n)
				case <-m.s.background.Done():
					return
				}
			}
		})
	}
	feed <- delivery{n, time.Now().Add(after)}
}

func (m *member) wake(keys ...event.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, key := range keys {
		m.due[key] = true
	}
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// work runs keys one after the other, and again after they have failed.
func (m *member) work(ctx context.Context, r *reconciler) {
	for {
		m.mu.Lock()
		var key event.Key
		found := false
		for k := range m.due {
			if m.s.holds(r.p, k) {
				key, found = k, true
				break
			}
		}
		delete(m.due, key)
		m.mu.Unlock()
		if !found {
			select {
			case <-m.kick:
				continue
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				return
			}
		}
		result, err := r.Reconcile(ctx, key)
		wait := result.After
		if err != nil {
			wait = 200 * time.Millisecond
		}
		if wait > 0 {
			time.AfterFunc(wait, func() { m.wake(key) })
		}
	}
}

// always is a bucket that has a token for everybody at any time.
type always struct{ f *fleet }

func (always) Set(float64, int) {}

func (a always) Take(context.Context) (rates.Token, error) {
	a.f.mu.Lock()
	defer a.f.mu.Unlock()
	a.f.asked++
	return roletest.Endless(), nil
}

// RoundTrip is the API server: GET and PATCH of nodes, with preconditions.
func (f *fleet) RoundTrip(q *http.Request) (*http.Response, error) {
	if strings.Contains(q.URL.Path, "/leases/") {
		return roletest.Refusal(q, http.StatusNotFound), nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := strings.Split(q.URL.Path, "/")
	n := f.nodes[parts[4]]
	if q.Method == http.MethodPatch {
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return nil, err
		}
		after, status := patchedNode(n, body)
		if status != 0 {
			return roletest.Refusal(q, status), nil
		}
		f.audit(n, after)
		n = after
		f.store(n)
	}
	n = n.DeepCopy()
	n.Kind, n.APIVersion = "Node", "v1"
	body, err := json.Marshal(n)
	if err != nil {
		return nil, err
	}
	return &http.Response{
		StatusCode: http.StatusOK, Request: q, ProtoMajor: 1, ProtoMinor: 1, Body: io.NopCloser(bytes.NewReader(body)),
		Header: http.Header{"Content-Type": {"application/json"}, "Date": {time.Now().UTC().Format(http.TimeFormat)}},
	}, nil
}

func patchedNode(n *corev1.Node, patch []byte) (after *corev1.Node, status int) {
	var says struct{ Metadata metav1.ObjectMeta }
	before, err := json.Marshal(n)
	if err == nil {
		err = json.Unmarshal(patch, &says)
	}
	switch {
	case err != nil:
		return nil, http.StatusBadRequest
	case says.Metadata.ResourceVersion != n.ResourceVersion || says.Metadata.UID != n.UID:
		return nil, http.StatusConflict
	}
	merged, err := strategicpatch.StrategicMergePatch(before, patch, corev1.Node{})
	after = &corev1.Node{}
	if err == nil {
		err = json.Unmarshal(merged, after)
	}
	if err != nil {
		return nil, http.StatusBadRequest
	}
	return after, 0
}

// audit notes each NoExecute taint that is added. f.mu is held.
func (f *fleet) audit(before, after *corev1.Node) {
	if !isTainted(before) && isTainted(after) {
		f.taken = append(f.taken, fmt.Sprintf("%s at %s", after.Name, time.Since(f.began)))
	}
}

// evicted returns the NoExecute taints since the last call, and how many tokens
// were asked for.
func (f *fleet) evicted() (taken []string, asked int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	taken, asked, f.taken, f.asked = f.taken, f.asked, nil, 0
	return taken, asked
}

// inFleet runs a story with so many members, each of which holds one partition of
// as many, and nodes in two zones that have beaten for a while.
func inFleet(t *testing.T, seed uint64, members, nodes int, delay time.Duration, story func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, seed, delay)
		ctx, cancel := context.WithCancel(t.Context())
		var watcher sync.WaitGroup
		for i := range nodes {
			f.add(fmt.Sprintf("n%02d", i), in(string(rune('a'+i%2))))
		}
		for i := range members {
			f.start(members, i)
		}
		watcher.Go(func() { f.watch(ctx, members) })
		time.Sleep(time.Minute)
		story(t, f)
		cancel()
		for len(f.members) > 0 {
			f.members[0].stop()
		}
		watcher.Wait()
	})
}
