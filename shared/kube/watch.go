package kube

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/millrace-io/millrace/shared/backoff"
	"github.com/millrace-io/millrace/shared/event"
)

// Events receives one kind. It is called from one goroutine, in the API's order;
// while a call lasts nothing further is read, and after a minute or so of that
// the API server ends the watch.
type Events interface {
	// Replaced is a consistent list of the whole kind at version: a quorum read
	// or the end of a watch-list, at the start and at every relist. What is not
	// in items does not exist at version.
	Replaced(version uint64, items []Object)
	// Changed is one change. For a deletion o is the last state, at the version
	// of the deletion.
	Changed(o Object, deleted bool)
	// Progress says that everything up to version has been delivered.
	Progress(version uint64)
}

const (
	// maxSilence is how long a live watch may say nothing: the API server sends
	// a bookmark about once a minute (cacher's bookmarkFrequency, v1.37). After
	// that the kind is relisted.
	maxSilence = 75 * time.Second
	// firstWord and nudgeEvery: a watch that has said nothing at all since it was
	// opened is nudged. The cacher sends no bookmark at or below the version a
	// watch began at (cacheWatcher.process, v1.37), and it learns of a newer one
	// only from an event, from etcd's progress notifications (every 10 min unless
	// etcd is told otherwise), or because a consistent read asked for one. So a
	// kind in which nothing happens would be relisted every 75 s for ever; one
	// consistent read of one object spares it that.
	firstWord  = 25 * time.Second
	nudgeEvery = 10 * time.Second
	// listSilence is how long a watch-list may send nothing before its end. A
	// server that cannot read the kind keeps it open without a word; a plain LIST
	// then says why.
	listSilence = 10 * time.Second
	// absentProbe is how often a kind that the API does not serve is asked for.
	absentProbe = 30 * time.Second
	// settled is how long a list-and-watch must have lasted to be no failure.
	settled = 10 * time.Second
	// listPage is the page of a LIST, where the server has no watch-list.
	listPage = 500
)

// retry paces what goes wrong: a kind that cannot be listed is tried again every
// few seconds.
var retry = backoff.Policy{Base: 250 * time.Millisecond, Max: 5 * time.Second}

// Watch is the list and watch of one kind. It keeps no objects.
type Watch struct {
	api          *API
	kind         event.Kind
	namespace    string // empty: all
	metadataOnly bool
	events       Events
	log          *slog.Logger
	seed         uint64

	mu     sync.Mutex
	status status
	relist chan struct{}
	plain  bool // the next list is a LIST: a watch-list has hung; Run's own
}

// status is what can be said about a watch.
type status struct {
	synced      bool // a list has been delivered, and no failure since asks for another
	established bool // a watch is open
	absent      bool
	heard       time.Time // the last event, bookmark or accepted request
	opened      time.Time // when the watch was opened
	spoke       bool      // something came over it since
	called      time.Time // end of the last call to Events
	calling     bool
	problem     string
	conn        *heardConn // what the watch runs on
	stream      *heardStream
}

// NewWatch prepares to watch a kind; metadataOnly asks for PartialObjectMetadata
// also of kinds that we have a type of. Kinds without one always come so.
func (a *API) NewWatch(kind event.Kind, metadataOnly bool, events Events) *Watch {
	h := fnv.New64a()
	_, _ = io.WriteString(h, string(kind))
	return &Watch{
		api: a, kind: kind, metadataOnly: metadataOnly, events: events,
		log: a.log.With("kind", string(kind)), seed: h.Sum64(),
		relist: make(chan struct{}, 1),
	}
}

// In narrows the watch to one namespace, and returns it. Before Run.
func (w *Watch) In(namespace string) *Watch {
	w.namespace = namespace
	return w
}

// Watch is NewWatch and Run, for who needs no status.
func (a *API) Watch(ctx context.Context, kind event.Kind, metadataOnly bool, events Events) error {
	return a.NewWatch(kind, metadataOnly, events).Run(ctx)
}

// Run delivers until ctx ends and returns its error; any other failure is
// retried for ever. A Watch runs once.
func (w *Watch) Run(ctx context.Context) error {
	failures := 0
	for ctx.Err() == nil {
		began := time.Now()
		err := w.listAndWatch(ctx)
		if ctx.Err() != nil {
			break
		}
		delay := w.judge(ctx, err)
		if time.Since(began) > settled {
			failures = 0
		}
		if errors.Is(err, errRelist) {
			continue
		}
		failures++
		w.pause(ctx, max(delay, retry.Delay(failures, w.seed)))
	}
	w.note(func(s *status) { s.established, s.problem = false, "stopped" })
	return ctx.Err()
}

// judge records how a list-and-watch ended and returns the least time to wait.
func (w *Watch) judge(ctx context.Context, err error) time.Duration {
	absent := errors.Is(err, errAbsent)
	if !absent && isNotServed(err) {
		ctx, cancel := context.WithTimeout(ctx, w.api.cfg.RequestTimeout)
		defer cancel()
		absent = w.api.absent(ctx, w.kind)
	}
	changed := false
	w.note(func(s *status) {
		s.synced, s.established = false, false
		changed = absent != s.absent
		s.absent = absent
		if err != nil {
			s.problem = err.Error()
		}
	})
	switch {
	case absent && changed:
		w.log.Info("kind is not served")
	case err != nil && !absent:
		w.log.Debug("list and watch ended", "error", err)
	}
	if absent {
		return absentProbe
	}
	return 0
}

func (w *Watch) pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-w.relist:
	case <-t.C:
	}
}

// Relist asks for a consistent list now; it arrives as Replaced, in order.
func (w *Watch) Relist() {
	select {
	case w.relist <- struct{}{}:
	default:
	}
}

// Kind returns what is watched.
func (w *Watch) Kind() event.Kind { return w.kind }

// Alive reports whether everything up to a moment ago has been delivered: a
// list was delivered, the watch is open, nothing failed since, and an event or
// an API bookmark came within 75 s. If not, the reason.
func (w *Watch) Alive(now time.Time) (bool, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.alive(now)
}

func (s *status) alive(now time.Time) (bool, string) {
	why := func(what string) (bool, string) {
		if s.problem != "" {
			what += ": " + s.problem
		}
		return false, what
	}
	switch {
	case s.absent:
		return false, "the API server does not serve it"
	case !s.synced:
		return why("no list yet")
	case !s.established:
		return why("no watch")
	case now.Sub(s.heard) > maxSilence:
		return false, fmt.Sprintf("silent for %s", now.Sub(s.heard).Truncate(time.Second))
	}
	return true, ""
}

// Problem returns the last failure until something succeeds; empty for none.
func (w *Watch) Problem() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.problem
}

// Absent reports that the API server answers and does not serve the kind. It is
// asked again every 30 s.
func (w *Watch) Absent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status.absent
}

// Proof returns up to when everything that the server had sent has been taken
// from the watch and passed on, but for the event or two that are being passed on
// right now. Bytes prove it: an event, or the answer to a ping (sent after a
// second of silence). Zero while no watch is open or the transport does not tell.
// It is to be asked again and again: the answer lags by one call.
func (w *Watch) Proof() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.status.established || w.status.conn == nil {
		return time.Time{}
	}
	heard := w.status.stream.heard(w.status.conn, w.status.calling)
	if heard < 0 {
		return time.Time{}
	}
	return started.Add(heard)
}

func (w *Watch) note(change func(*status)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(&w.status)
}

// listAndWatch runs client-go's reflector until it wants to list anew. A new
// reflector each time: it carries nothing over that we want, as every list here
// is the newest state and never "at least as new as".
func (w *Watch) listAndWatch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	src, err := w.api.source(ctx, w.kind, w.metadataOnly)
	if err != nil {
		return err
	}
	select {
	case <-w.relist: // about to
	default:
	}
	var watchdog sync.WaitGroup
	watchdog.Go(func() { w.watchdogSince(ctx, cancel, time.Now()) })
	watchdog.Go(func() { w.nudge(ctx, src) })
	defer watchdog.Wait()
	defer cancel(nil)

	lister := &watcher{w: w, source: src, plain: w.plain}
	w.plain = false
	r := cache.NewReflectorWithOptions(
		lister, src.example, &sink{w: w, cancel: cancel},
		cache.ReflectorOptions{
			Name:            "millrace",
			TypeDescription: string(w.kind),
			Clock:           &hasty{done: ctx.Done()},
			Backoff: &wait.Backoff{ // between attempts to resume a watch; ≤ 5 s with its jitter
				Duration: 250 * time.Millisecond, Factor: 2, Steps: 5, Cap: 3 * time.Second, Jitter: 0.6,
			},
		})
	r.WatchListPageSize = listPage
	err = r.ListAndWatchWithContext(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		w.plain = errors.Is(cause, errHung)
		return cause
	}
	return err
}

var (
	errRelist = errors.New("relisting on request")
	errHung   = fmt.Errorf("the watch-list sent nothing for %s", listSilence)
	errPlain  = errors.New("a plain list is wanted")
)

// watchdogSince ends a list-and-watch that began then, when it has fallen silent
// or was asked to relist. A consumer that takes its time is not silence.
func (w *Watch) watchdogSince(ctx context.Context, cancel context.CancelCauseFunc, began time.Time) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.relist:
			cancel(errRelist)
			return
		case now := <-tick.C:
			w.mu.Lock()
			s := w.status
			w.mu.Unlock()
			if s.calling {
				continue
			}
			silence := now.Sub(latest(began, s.heard, s.called))
			if s.established && !s.synced && silence > listSilence {
				cancel(errHung)
				return
			}
			if silence > maxSilence {
				cancel(fmt.Errorf("neither event nor bookmark for %s", maxSilence))
				return
			}
		}
	}
}

// nudge makes the API server's cache notice that time has passed, while a watch
// has said nothing since it was opened.
func (w *Watch) nudge(ctx context.Context, src source) {
	tick := time.NewTicker(nudgeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			w.mu.Lock()
			s := w.status
			w.mu.Unlock()
			if !s.synced || !s.established || s.spoke || now.Sub(s.opened) < firstWord {
				continue
			}
			read, cancel := context.WithTimeout(ctx, w.api.cfg.RequestTimeout)
			_, _ = src.list(read, w.namespace, metav1.ListOptions{Limit: 1}) // it fails as the watch will
			cancel()
		}
	}
}

func latest(times ...time.Time) time.Time {
	var last time.Time
	for _, t := range times {
		if t.After(last) {
			last = t
		}
	}
	return last
}

// watcher is the ListerWatcher behind the reflector: it asks for the newest
// state, whatever version the reflector would be content with, and sees what
// passes.
type watcher struct {
	w      *Watch
	source source
	plain  bool // no watch-list
}

// List and Watch complete the interface; the reflector calls the other two.
func (l *watcher) List(opts metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(context.TODO(), opts) //nolint:forbidigo // an interface without a context, that the reflector does not call
}

func (l *watcher) Watch(opts metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(context.TODO(), opts) //nolint:forbidigo // as above
}

// ListWithContext is one page. "" is a quorum read; the reflector would take "0",
// which may be any age.
func (l *watcher) ListWithContext(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
	opts.ResourceVersion, opts.ResourceVersionMatch = "", ""
	list, err := l.source.list(ctx, l.w.namespace, opts)
	l.w.note(func(s *status) {
		if err != nil {
			s.problem = err.Error()
			return
		}
		s.heard = time.Now()
	})
	return list, err
}

// WatchWithContext opens a watch, or a watch-list when the reflector wants the
// initial events: then "" means as of now, confirmed with etcd.
func (l *watcher) WatchWithContext(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	initial := opts.SendInitialEvents != nil && *opts.SendInitialEvents
	if initial {
		if l.plain {
			return nil, errPlain // the reflector falls back to a LIST
		}
		opts.ResourceVersion = ""
	}
	var conn *heardConn
	stream := newHeardStream()
	traced := traceConn(withStream(ctx, stream), func(c *heardConn) { conn = c })
	inner, err := l.source.watch(traced, l.w.namespace, opts)
	l.w.note(func(s *status) {
		if err != nil {
			s.established, s.problem = false, err.Error()
			return
		}
		s.established, s.absent = true, false
		if s.synced {
			s.problem = "" // else it stays until the list has come
		}
		s.heard, s.conn, s.stream = time.Now(), conn, stream
		s.opened, s.spoke = s.heard, false
	})
	if err != nil {
		if initial {
			err = asList(err)
		}
		return nil, err
	}
	return observe(ctx, inner, l.w, initial), nil
}

// asList makes the reflector fall back to a LIST where it would ask for a
// watch-list again, at once and for ever: a server that cannot read the kind says
// that its cache lags behind etcd. The LIST says why.
func asList(err error) error {
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) || apierrors.IsResourceExpired(err) {
		return apierrors.NewInternalError(errors.New(err.Error())) // without err in its chain
	}
	return err
}

// observed passes a watch on and notes what it hears.
type observed struct {
	inner   watch.Interface
	initial bool // it began as a watch-list
	out     chan watch.Event
	done    chan struct{}
	once    sync.Once
}

func observe(ctx context.Context, inner watch.Interface, w *Watch, initial bool) watch.Interface {
	o := &observed{inner: inner, initial: initial, out: make(chan watch.Event), done: make(chan struct{})}
	go o.run(ctx, w)
	return o
}

func (o *observed) run(ctx context.Context, w *Watch) {
	defer close(o.out)
	defer w.note(func(s *status) { s.established = false })
	for e := range o.inner.ResultChan() {
		if o.stopped() || ctx.Err() != nil {
			return // what a watch says when we have ended it ourselves is no problem
		}
		var err error
		if e.Type == watch.Error {
			err = apierrors.FromObject(e.Object)
		}
		w.note(func(s *status) {
			s.heard, s.spoke = time.Now(), s.spoke || s.synced
			if err != nil {
				s.established, s.problem = false, err.Error()
			}
		})
		var status apierrors.APIStatus
		if err != nil && o.initial && errors.As(asList(err), &status) {
			s := status.Status()
			e.Object = &s
		}
		select {
		case o.out <- e:
		case <-o.done:
			return
		}
	}
}

func (o *observed) stopped() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

func (o *observed) ResultChan() <-chan watch.Event { return o.out }

func (o *observed) Stop() {
	o.once.Do(func() { close(o.done) })
	o.inner.Stop()
}

// sink is the reflector's store: it passes on and keeps nothing.
type sink struct {
	w      *Watch
	cancel context.CancelCauseFunc
}

func (s *sink) Add(obj any) error    { return s.changed(obj, false) }
func (s *sink) Update(obj any) error { return s.changed(obj, false) }
func (s *sink) Delete(obj any) error { return s.changed(obj, true) }
func (s *sink) Resync() error        { return nil }

func (s *sink) changed(obj any, deleted bool) error {
	raw, ok := obj.(runtime.Object)
	if !ok {
		return s.fail(fmt.Errorf("reading an event: %T is no object", obj))
	}
	o, err := toObject(raw, time.Now())
	if err != nil {
		return s.fail(err)
	}
	s.w.call(func() { s.w.events.Changed(o, deleted) })
	return nil
}

func (s *sink) Replace(list []any, resourceVersion string) error {
	v, err := version(resourceVersion)
	if err != nil {
		return s.fail(fmt.Errorf("reading a list: %w", err))
	}
	now := time.Now()
	objects := make([]Object, len(list))
	for i, item := range list {
		raw, ok := item.(runtime.Object)
		if !ok {
			return s.fail(fmt.Errorf("reading a list: %T is no object", item))
		}
		if objects[i], err = toObject(raw, now); err != nil {
			return s.fail(err)
		}
	}
	s.w.call(func() { s.w.events.Replaced(v, objects) })
	s.w.note(func(st *status) { st.synced, st.problem = true, "" })
	return nil
}

// Bookmark is called by the reflector in order with the events.
func (s *sink) Bookmark(resourceVersion string) error {
	v, err := version(resourceVersion)
	if err != nil {
		return s.fail(fmt.Errorf("reading a bookmark: %w", err))
	}
	s.w.call(func() { s.w.events.Progress(v) })
	return nil
}

// fail ends the list-and-watch: the reflector would log the error and go on as
// if the event had been delivered.
func (s *sink) fail(err error) error {
	s.w.note(func(st *status) { st.established, st.problem = false, err.Error() })
	s.cancel(err)
	return err
}

// call runs one call to Events and tells the watchdog.
func (w *Watch) call(f func()) {
	w.note(func(s *status) { s.calling = true })
	defer w.note(func(s *status) { s.calling, s.called = false, time.Now() })
	f()
}

// hasty is a real clock whose waits end with a context: the reflector sleeps
// between attempts without looking at its own.
type hasty struct {
	clock.RealClock
	done <-chan struct{}
}

func (c *hasty) After(d time.Duration) <-chan time.Time {
	out := make(chan time.Time, 1)
	go func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-c.done:
		case <-t.C:
		}
		out <- time.Now()
	}()
	return out
}

var (
	_ cache.ReflectorStore         = (*sink)(nil)
	_ cache.ReflectorBookmarkStore = (*sink)(nil)
)
