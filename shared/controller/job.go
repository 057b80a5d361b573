package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// JobDefinition is a piece of work of a role that is not cut into partitions,
// because it counts or orders the whole cluster.
type JobDefinition struct {
	// Name is the job's for good.
	Name string
	// Part is the part of the role whose mode holds for it; empty: the role's alone
	// does.
	Part string
	// Inputs are kinds of which the holder reads every partition.
	Inputs []cache.Input
}

// Job is a job on the member that holds it: what a Partition is to a Reconciler. It
// is safe for concurrent use.
type Job struct {
	c     *Controller
	def   JobDefinition
	grant Grant
	ctx   context.Context // ends with the claim
	log   *slog.Logger
	feed  *feed
	cache *cache.Cache

	mu      sync.Mutex
	look    looked
	written time.Time // when it last wrote, or may have
	waits   string    // what Look waits for, for people
	passes  uint64
	lastErr string
	told    map[intended]struct{} // what was recorded as intended in this mode
}

// intended names a write that shadow mode held back.
type intended struct {
	object Ref
	verb   string
	rule   string
}

// NewJob returns a job that this member has claimed; ctx ends when it is lost.
// Follow keeps its inputs filled, Close ends it.
func (c *Controller) NewJob(ctx context.Context, def JobDefinition, g Grant) *Job {
	j := &Job{c: c, def: def, grant: g, ctx: ctx, log: c.log.With("job", def.Name, "epoch", g.Epoch())}
	spec := event.Feed{Name: fmt.Sprintf("%s-job-%s-%s-%d", c.def.Role, def.Name, g.Member(), g.Epoch())}
	for _, in := range def.Inputs {
		spec.Filters = append(spec.Filters, event.KindFilter(event.Root(c.bus.Cluster()), in.Kind))
	}
	j.feed = c.newFeed(j.log, spec)
	j.cache = j.feed.fill(protocol.Scope{By: protocol.Whole, Partitions: c.bus.Partitions()}, def.Inputs, nil, nil)
	j.feed.moved = func() {
		if j.cache.Synced() {
			c.giveBack() // what the replay has left behind
		}
	}
	j.Begin()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs[j] = struct{}{}
	return j
}

// Close says that the job is held no more.
func (j *Job) Close() {
	j.c.mu.Lock()
	delete(j.c.jobs, j)
	close(j.c.closed)
	j.c.closed = make(chan struct{})
	j.c.mu.Unlock()
	if len(j.def.Inputs) > 0 {
		j.c.giveBack()
	}
}

// awaitJobs returns when no job is held, so that what they have written is still
// recorded; it waits no longer than for a partition.
func (c *Controller) awaitJobs() {
	patience := time.NewTimer(lostWait)
	defer patience.Stop()
	for {
		c.mu.Lock()
		held, closed := len(c.jobs), c.closed
		c.mu.Unlock()
		if held == 0 {
			return
		}
		select {
		case <-closed:
		case <-patience.C:
			c.log.Warn("jobs do not notice that the role ends", "jobs", held)
			return
		}
	}
}

// Follow keeps the inputs filled until ctx ends.
func (j *Job) Follow(ctx context.Context) {
	if len(j.def.Inputs) > 0 {
		j.feed.follow(ctx)
	}
}

// Begin forgets what was looked at and intended: the work is begun anew, because
// the job was claimed or what holds has changed.
func (j *Job) Begin() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.look, j.told = looked{}, make(map[intended]struct{})
}

// Epoch returns the epoch of the lease, Member the id of this member.
func (j *Job) Epoch() uint64 { return j.grant.Epoch() }

// Member returns the id of this member.
func (j *Job) Member() string { return j.grant.Member() }

// Now returns the cluster's time; see Partition.Now.
func (j *Job) Now() (time.Time, error) { return j.c.now() }

// Mode returns what holds for a part of the role; see Partition.Mode. Whenever any
// mode of the role changes, the job's work is ended and begun anew.
func (j *Job) Mode(part string) string { return j.c.modeOf(part) }

// Wrote says what the job has written; what Look shows next shows that.
func (j *Job) Wrote(event.Key, protocol.Write) { j.wrote() }

func (j *Job) wrote() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.written = time.Now()
}

// Record keeps one write for those who ask why; see Partition.Record. What shadow
// mode holds back is recorded once, though every pass would write it.
func (j *Job) Record(key event.Key, d Decision) {
	if d.Err != nil {
		j.wrote() // the API server may have done it all the same
	}
	if d.Shadow && !j.first(d) {
		return
	}
	r := j.c.record(d)
	r.Key = Ref{Kind: d.Object.Kind, Key: key}.proto()
	r.Member, r.Epoch, r.Job = j.Member(), j.Epoch(), j.def.Name
	j.mu.Lock()
	if !j.look.at.IsZero() {
		r.Taken = timestamppb.New(j.look.at)
	}
	j.mu.Unlock()
	j.c.records.put(r)
}

// first reports whether a write is intended for the first time in this mode.
func (j *Job) first(d Decision) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	this := intended{Ref{Kind: d.Object.Kind, Key: d.Object.Key, UID: d.Object.UID}, d.Verb, d.Rule}
	if _, known := j.told[this]; known {
		return false
	}
	if len(j.told) >= maxIntents {
		clear(j.told)
	}
	j.told[this] = struct{}{}
	return true
}

// passAgain is the least time between two passes of Every. Unit: time. Source: ours;
// bookmarks, by which inputs become fresh, come once a second.
const passAgain = time.Second

// Every calls pass at once and from then on every so often until ctx ends, whose
// error it returns. A pass that ended because what it had looked at grew too old
// has more to do and is followed by the next at once; any other error waits for the
// next, and is told in status.
func (j *Job) Every(ctx context.Context, period time.Duration, pass func(ctx context.Context) error) error {
	for ctx.Err() == nil {
		err := pass(ctx)
		if ctx.Err() != nil {
			break
		}
		wait := period
		if errors.Is(err, ErrStale) || errors.Is(err, ErrNotSynced) {
			wait = min(period, passAgain)
		}
		j.passed(err)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
	return ctx.Err()
}

func (j *Job) passed(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.passes++
	j.lastErr = ""
	if err != nil && !errors.Is(err, ErrShadow) {
		j.lastErr = cut(err.Error())
		j.log.Debug("a pass of the job failed", "err", err)
	}
}

// heldJobs returns the jobs held, by name.
func (c *Controller) heldJobs() []*Job {
	c.mu.Lock()
	held := slices.Collect(maps.Keys(c.jobs))
	c.mu.Unlock()
	slices.SortFunc(held, func(a, b *Job) int { return cmp.Compare(a.def.Name, b.def.Name) })
	return held
}

// status is what a member says of a job that it holds.
func (j *Job) status() *millracev1.JobStatus {
	s := &millracev1.JobStatus{Name: j.def.Name, Epoch: j.Epoch(), Part: j.def.Part, Mode: j.c.modeOf(j.def.Part), Synced: j.cache.Synced()}
	for _, st := range j.cache.Status() {
		s.Objects += uint64(st.Objects) //nolint:gosec // a count
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	s.Passes, s.WaitsFor, s.LastError = j.passes, j.waits, j.lastErr
	return s
}
