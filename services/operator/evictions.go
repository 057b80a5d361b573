package operator

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// Evictions is what members have still to evict or delete.
type Evictions struct {
	// Members are those that answered.
	Members int `json:"members"`
	// Total is how many there are that were asked for, LeftOut how many of them are
	// not named: those that are due last.
	Total   uint64     `json:"total"`
	LeftOut uint64     `json:"leftOut"`
	Items   []Eviction `json:"items"`
}

// Eviction is one object that is still to be evicted or deleted.
type Eviction struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`
	UID  string `json:"uid,omitempty"`
	Node string `json:"node,omitempty"`
	Why  string `json:"why"`
	// Due is by the cluster's time, DueInSeconds how long after the member's answer;
	// negative: overdue. Absent where it is not known.
	Due          *time.Time `json:"due,omitempty"`
	DueInSeconds *float64   `json:"dueInSeconds,omitempty"`
	Waiting      string     `json:"waiting"`
	Role         string     `json:"role"`
	Host         string     `json:"host"`
	Member       string     `json:"member"`
}

// wanted is what a person asks for.
type wanted struct {
	role, node string
	most       int
}

// maxShown bounds what may be asked for. Unit: items. Source: ours; a member names
// no more than 1 000.
const maxShown = 100_000

func evictions(ctx context.Context, s session) error {
	format, want := "", wanted{}
	_, err := flags("evictions", s.args, func(fs *flag.FlagSet) {
		outputFlag(fs, &format)
		fs.StringVar(&want.role, "role", "", "")
		fs.StringVar(&want.node, "node", "", "")
		fs.IntVar(&want.most, "n", 100, "")
	})
	if err != nil {
		return err
	}
	if _, there := s.roles[want.role]; want.role != "" && !there {
		return fmt.Errorf("%w: -role is %q; there are: %s", errUsage, want.role, strings.Join(s.roleNames(), ", "))
	}
	if want.most < 1 || want.most > maxShown {
		return fmt.Errorf("%w: -n is %d; it must be 1 to %d", errUsage, want.most, maxShown)
	}
	found, err := pendingOf(ctx, s.bus, want)
	if err != nil {
		return err
	}
	return s.print(format, found, func(w io.Writer) error { return renderEvictions(w, found) })
}

// pendingOf asks the members.
func pendingOf(ctx context.Context, b *bus.Bus, want wanted) (*Evictions, error) {
	request, err := proto.Marshal(&millracev1.PendingRequest{
		Role: want.role, Node: want.node, Limit: uint32(want.most), //nolint:gosec // at most maxShown
	})
	if err != nil {
		return nil, fmt.Errorf("forming a request: %w", err)
	}
	answers, err := b.AskAll(ctx, controller.PendingSubject(b.Cluster()), request, gatherWait)
	if err != nil && !errors.Is(err, event.ErrNoResponders) {
		return nil, fmt.Errorf("asking members: %w", err)
	}
	out := &Evictions{Items: []Eviction{}}
	for _, data := range answers {
		a := &millracev1.PendingReport{}
		if err := proto.Unmarshal(data, a); err != nil {
			return nil, fmt.Errorf("reading a member's answer: %w", err)
		}
		out.add(a)
	}
	out.finish(want.most)
	return out, nil
}

func (x *Evictions) add(a *millracev1.PendingReport) {
	x.Members++
	x.Total += a.GetTotal()
	for _, item := range a.GetItems() {
		e := Eviction{
			Kind: item.GetObject().GetKind(), Key: keyOf(item.GetObject()), UID: item.GetObject().GetUid(),
			Node: item.GetNode(), Why: item.GetWhy(), Waiting: item.GetWaiting(),
			Role: a.GetRole(), Host: a.GetHost(), Member: a.GetMember(),
		}
		if item.GetDue() != nil {
			due := item.GetDue().AsTime()
			left := due.Sub(a.GetAt().AsTime()).Seconds()
			e.Due, e.DueInSeconds = &due, &left
		}
		x.Items = append(x.Items, e)
	}
}

// finish keeps the soonest. What is due at an unknown time comes last.
func (x *Evictions) finish(most int) {
	slices.SortFunc(x.Items, func(a, b Eviction) int {
		if (a.Due == nil) != (b.Due == nil) {
			return map[bool]int{true: 1, false: -1}[a.Due == nil]
		}
		by := 0
		if a.Due != nil {
			by = cmp.Compare(*a.DueInSeconds, *b.DueInSeconds)
		}
		return cmp.Or(by, cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key), cmp.Compare(a.Role, b.Role))
	})
	x.Items = x.Items[:min(most, len(x.Items))]
	x.LeftOut = x.Total - min(x.Total, uint64(len(x.Items)))
}

func renderEvictions(w io.Writer, x *Evictions) error {
	switch {
	case x.Members == 0:
		fmt.Fprintln(w, "no member answers that evicts or deletes anything")
		return nil
	case x.Total == 0:
		fmt.Fprintf(w, "nothing is pending; %d members answered\n", x.Members)
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "POD\tNODE\tWHY\tDUE\tWAITING FOR\tMEMBER")
	for _, e := range x.Items {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", e.name(), cmp.Or(e.Node, "-"), cmp.Or(e.Why, "-"), e.due(), cmp.Or(e.Waiting, "-"), e.by())
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("writing evictions: %w", err)
	}
	if x.LeftOut > 0 {
		fmt.Fprintf(w, "and %d more that are due later\n", x.LeftOut)
	}
	return nil
}

// name is the pod, or what else it is.
func (e Eviction) name() string {
	if e.Kind == "pods" {
		return e.Key
	}
	return e.Kind + " " + e.Key
}

func (e Eviction) due() string {
	switch {
	case e.DueInSeconds == nil:
		return "unknown"
	case *e.DueInSeconds < 0:
		return "overdue by " + seconds(-*e.DueInSeconds)
	default:
		return "in " + seconds(*e.DueInSeconds)
	}
}

// by is who will do it: the host, and the member, which partitions are held by.
func (e Eviction) by() string {
	if e.Member == "" || e.Member == e.Host {
		return e.Host
	}
	return e.Host + " (" + e.Member + ")"
}
