package operator

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// Render writes the status as tables.
func Render(w io.Writer, s Status) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "cluster %s\tpartitions %d\tbus %s\n\n", s.Cluster, s.Partitions, s.Bus)
	if len(s.Paused) > 0 {
		fmt.Fprintf(t, "PAUSED: %s\n\n", strings.Join(s.Paused, ", "))
	}
	renderRoles(t, s.Roles)
	renderMembers(t, s.Roles)
	renderJobs(t, s.Roles)
	renderRates(t, s.Roles)
	renderKinds(t, s.Kinds)
	renderHeartbeats(t, s.Heartbeats)
	renderLetters(t, s.DeadLetters)
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing status: %w", err)
	}
	return nil
}

func renderRoles(w io.Writer, roles []RoleStatus) {
	fmt.Fprintln(w, "ROLE\tMEMBERS\tHELD\tBACKLOG\tOLDEST\tHEAVIEST (OBJECTS)")
	for _, r := range roles {
		held := fmt.Sprint(r.Held)
		if r.Units > 0 {
			held = fmt.Sprintf("%d/%d", r.Held, r.Units)
		}
		backlog := fmt.Sprint(r.Backlog)
		if r.Backlog < 0 {
			backlog = "?"
		}
		var heavy []string
		for _, u := range r.Heaviest {
			heavy = append(heavy, fmt.Sprintf("%s (%d)", u.Unit, u.Objects))
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", r.Role, len(r.Members), held, backlog, seconds(r.OldestSeconds), strings.Join(heavy, ", "))
	}
	fmt.Fprintln(w)
}

func renderMembers(w io.Writer, roles []RoleStatus) {
	fmt.Fprintln(w, "MEMBER\tROLE\tHOST\tAGE\tMEMORY\tMODE\tHOLDS\tREADY")
	for _, r := range roles {
		for _, m := range r.Members {
			ready := "yes"
			if len(m.NotReady) > 0 {
				ready = "no: " + strings.Join(m.NotReady, "; ")
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d MiB\t%s\t%s\t%s\n", m.ID, r.Role, m.Host, seconds(m.AgeSeconds), m.ResidentBytes>>20, modeText(m.Mode, m.Parts), units(m.Units), ready)
		}
	}
	fmt.Fprintln(w)
}

func renderJobs(w io.Writer, roles []RoleStatus) {
	head := "JOB\tROLE\tHELD BY\tMODE\tOBJECTS\tPASSES\tPROBLEM\n"
	for _, r := range roles {
		for _, j := range r.Jobs {
			problem := j.LastError
			if problem == "" && j.WaitsFor != "" {
				problem = "waits for its inputs: " + j.WaitsFor
			}
			fmt.Fprintf(w, "%s%s\t%s\t%s\t%s\t%d\t%d\t%s\n", head, j.Job, r.Role, j.Host, j.Mode, j.Objects, j.Passes, problem)
			head = ""
		}
	}
	if head == "" {
		fmt.Fprintln(w)
	}
}

func renderRates(w io.Writer, roles []RoleStatus) {
	head := "LIMIT\tROLE\tPER SECOND\tBURST\tTOKENS\tSPENT\tLAST TAKER\tWAITING\tPROBLEM\n"
	for _, r := range roles {
		for _, l := range r.Rates {
			fmt.Fprintf(w, "%s%s\t%s\t%g\t%g\t%d\t%d\t%s\t%d\t%s\n", head, l.Scope, r.Role, l.PerSecond, l.Burst, l.Tokens, l.Spent, l.Taker, l.Waiting, l.Problem)
			head = ""
		}
	}
	if head == "" {
		fmt.Fprintln(w)
	}
}

func renderKinds(w io.Writer, kinds []KindStatus) {
	fmt.Fprintln(w, "KIND\tREAD BY\tSYNCED\tAGE\tUP TO\tOBJECTS\tPROBLEM")
	for _, k := range kinds {
		synced := fmt.Sprint(k.Synced)
		if k.Absent {
			synced = "absent"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", k.Kind, k.Role, synced, seconds(k.AgeSeconds), k.Upto, k.Objects, k.Problem)
	}
}

func renderHeartbeats(w io.Writer, h *Heartbeats) {
	if h == nil {
		return
	}
	fmt.Fprintln(w, "\nHEARTBEATS OF\tOLDEST\tLARGEST DIGEST\tPROBLEM")
	fmt.Fprintf(w, "%d nodes\t%s\t%d bytes\t%s\n", h.Nodes, seconds(h.OldestSeconds), h.DigestBytes, h.Problem)
}

func renderLetters(w io.Writer, letters []DeadLetter) {
	if len(letters) == 0 {
		return
	}
	fmt.Fprintln(w, "\nDEAD LETTER\tROLE\tKIND\tSINCE\tREASON")
	for _, l := range letters {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", l.Key, l.Role, l.Kind, l.At.Format(time.RFC3339), l.Reason)
	}
}

// modeText is the mode of a role and, in brackets, those of parts that are in
// another.
func modeText(mode string, parts []PartMode) string {
	var others []string
	for _, p := range parts {
		if p.Mode != mode {
			others = append(others, p.Part+" "+cmp.Or(p.Mode, "unknown"))
		}
	}
	if len(others) == 0 {
		return mode
	}
	return mode + " (" + strings.Join(others, ", ") + ")"
}

// units lists what a member holds: partitions as ranges, kinds by name.
func units(us []UnitStatus) string {
	names := make([]string, len(us))
	for i, u := range us {
		names[i] = u.Unit
	}
	return strings.Join(names, " ")
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond).String()
}
