package operator

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// RenderExplanation writes an explanation for a person.
func RenderExplanation(w io.Writer, x *Explanation, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "%s %s\n\n", x.Kind, x.Key)
	renderLive(t, x, now)
	renderBus(t, x, now)
	renderHolders(t, x)
	for _, l := range x.DeadLetters {
		fmt.Fprintf(t, "dead letter\t%s gave it up at %s: %s\n", l.Role, clock(l.At), l.Reason)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing an explanation: %w", err)
	}
	if len(x.Decisions) == 0 {
		fmt.Fprintln(w, "\nno write of ours is on record")
	}
	for i, d := range x.Decisions {
		title := "write"
		if i == len(x.Decisions)-1 {
			title = "last write"
		}
		renderDecision(w, title, d, now)
	}
	return nil
}

func renderLive(w io.Writer, x *Explanation, now time.Time) {
	if x.Live == nil {
		fmt.Fprintf(w, "API server\t%s\n", x.LiveProblem)
		return
	}
	l := x.Live
	fmt.Fprintf(w, "API server\tversion %d, uid %s, created %s", l.Version, l.UID, ago(now, l.Created))
	if l.Manager != "" {
		fmt.Fprintf(w, ", written last by %s %s", l.Manager, ago(now, l.Written))
	}
	if l.Deleted != nil {
		fmt.Fprintf(w, ", being deleted since %s", clock(*l.Deleted))
	}
	fmt.Fprintln(w)
}

func renderBus(w io.Writer, x *Explanation, now time.Time) {
	if x.Bus == nil {
		fmt.Fprintf(w, "bus\t%s\n", x.BusProblem)
		return
	}
	b := x.Bus
	fmt.Fprintf(w, "bus\t%s of version %d, seen by the watcher %s (sequence %d)", b.Op, b.Version, ago(now, b.Observed), b.Sequence)
	if x.Live != nil && x.Live.UID == b.UID && x.Live.Version > b.Version {
		fmt.Fprintf(w, "; version %d changed nothing that travels, or is on its way", x.Live.Version)
	}
	fmt.Fprintln(w)
}

func renderHolders(w io.Writer, x *Explanation) {
	if len(x.Holders) == 0 {
		fmt.Fprintf(w, "holder\tno member answered that it reads this\n")
	}
	for _, h := range x.Holders {
		where := "reads it whole"
		if h.Epoch != 0 {
			where = fmt.Sprintf("holds partition %d, epoch %d", h.Partition, h.Epoch)
		}
		fmt.Fprintf(w, "%s\t%s (member %s) %s%s, %s, bookmark %s old\n", h.Role, h.Host, h.Member, where, modeWord(modeText(h.Mode, h.Parts)), syncedWord(h.Synced), seconds(h.FreshSeconds))
		switch {
		case h.Opaque:
			fmt.Fprintf(w, "\tin its cache: version %d, which could not be carried or read\n", h.Cached)
		case h.Cached > 0:
			fmt.Fprintf(w, "\tin its cache: version %d\n", h.Cached)
		default:
			fmt.Fprintf(w, "\tin its cache: nothing\n")
		}
		for _, k := range h.Keys {
			renderKey(w, k)
		}
	}
}

func modeWord(mode string) string {
	if mode == "" || mode == "active" {
		return ""
	}
	return " in " + mode + " mode"
}

func syncedWord(synced bool) string {
	if synced {
		return "complete"
	}
	return "not complete"
}

func renderKey(w io.Writer, k KeyState) {
	fmt.Fprintf(w, "\tkey %s: %s", k.Key, strings.ReplaceAll(k.State, "_", " "))
	if k.SinceSeconds > 0 {
		fmt.Fprintf(w, " for %s", seconds(k.SinceSeconds))
	}
	if k.WaitsFor != "" {
		fmt.Fprintf(w, ", waits for: %s", k.WaitsFor)
	}
	if k.NextTrySeconds != nil {
		fmt.Fprintf(w, ", looks again in %s", seconds(*k.NextTrySeconds))
	}
	fmt.Fprintln(w)
	if k.Cause != nil {
		fmt.Fprintf(w, "\t\tbecause of %s\n", k.Cause)
	}
	if len(k.Unseen) > 0 {
		fmt.Fprintf(w, "\t\tnot seen to come back: %s\n", strings.Join(k.Unseen, ", "))
	}
	if k.LastError != "" {
		fmt.Fprintf(w, "\t\tfailed %d times, last: %s\n", k.Failures, k.LastError)
	}
	for _, note := range k.Notes {
		fmt.Fprintf(w, "\t\t%s\n", note)
	}
	if k.LiveFirst {
		fmt.Fprintln(w, "\t\tits next write is decided on a live read")
	}
}

// String names the change as people do.
func (c *Cause) String() string {
	return fmt.Sprintf("the %s of %s %s (version %d)", c.Op, c.Kind, c.Key, c.Version)
}

func renderDecision(w io.Writer, title string, d Decision, now time.Time) {
	fmt.Fprintf(w, "\n%s: %s of %s %s", title, d.Verb, d.Kind, d.Object)
	switch d.Outcome {
	case "taken":
		fmt.Fprintf(w, ", version %d → %d", d.Base, d.Version)
	case "refused":
		fmt.Fprintf(w, " on version %d, not taken (%s)", d.Base, d.ErrorClass)
	default:
		fmt.Fprintf(w, " on version %d, held back in shadow mode", d.Base)
	}
	fmt.Fprintf(w, ", %s (%s)\n", ago(now, d.At), clock(d.At))
	unit := fmt.Sprintf("partition %d", d.Partition)
	if d.Job != "" {
		unit = "job " + d.Job
	}
	fmt.Fprintf(w, "  by       %s, replica %s (member %s), %s, epoch %d\n", d.Role, d.Host, d.Member, unit, d.Epoch)
	fmt.Fprintf(w, "  for      %s, rule %s\n", d.Key, d.Rule)
	if d.Detail != "" {
		fmt.Fprintf(w, "  why      %s\n", d.Detail)
	}
	switch {
	case d.Job != "": // it goes by what it counted, not by an event
	case d.Cause == nil:
		fmt.Fprintln(w, "  because  no event: all keys are looked at after a claim or a replay, or it was time to look again")
	default:
		fmt.Fprintf(w, "  because  of %s\n", d.Cause)
		fmt.Fprintf(w, "  ages     %s\n", d.Ages)
	}
	if len(d.Inputs) > 0 {
		fmt.Fprintf(w, "  on       %s\n", inputs(d))
	}
	if d.Error != "" {
		fmt.Fprintf(w, "  error    %s\n", d.Error)
	}
}

// String tells the hops in their order.
func (a Ages) String() string {
	var hops []string
	for _, hop := range []struct {
		s    float64
		says string
	}{
		{a.WatchSeconds, "to the watcher"}, {a.BusSeconds, "to the replica"},
		{a.QueueSeconds, "until taken in hand"}, {a.WriteSeconds, "until written"},
	} {
		if hop.s >= 0 {
			hops = append(hops, fmt.Sprintf("%s %s", time.Duration(hop.s*float64(time.Second)).Round(100*time.Microsecond), hop.says))
		}
	}
	return strings.Join(hops, ", ")
}

func inputs(d Decision) string {
	names := make([]string, 0, len(d.Inputs)+1)
	for _, in := range d.Inputs {
		names = append(names, fmt.Sprintf("%s %s@%d", in.Kind, in.Key, in.Version))
	}
	if d.MoreInputs > 0 {
		names = append(names, fmt.Sprintf("%d more", d.MoreInputs))
	}
	return strings.Join(names, ", ")
}

func ago(now, at time.Time) string {
	return now.Sub(at).Round(10*time.Millisecond).String() + " ago"
}

func clock(at time.Time) string { return at.Format("2006-01-02T15:04:05.000Z07:00") }
