package controller

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// maxPending is how many items a report names, however many are asked for. Unit:
// items. Source: ours; more is no list for people, and the rest is counted.
const maxPending = 1000

// Pending is one thing that a member has still to do.
type Pending struct {
	Object Ref
	// Node is the node that it is about, and Why the reason, both for people.
	Node, Why string
	// Due is when it is to be done, or was, by the cluster's time; zero: not known.
	Due time.Time
	// Waiting is for what: "time", "rate", "freshness", "pause", "shadow",
	// "quarantine", "retry: " and the error.
	Waiting string
}

// PendingSubject is where members say what they have still to do.
func PendingSubject(cluster string) string { return "millrace." + event.Token(cluster) + ".pending" }

// pending answers what this member has still to do; nil where another role is
// asked, or this one has nothing of the kind.
func (c *Controller) pending(data []byte) []byte {
	var request millracev1.PendingRequest
	if err := proto.Unmarshal(data, &request); err != nil || c.def.Pending == nil {
		return nil
	}
	if role := request.GetRole(); role != "" && role != c.def.Role {
		return nil
	}
	todo := c.def.Pending()
	if node := request.GetNode(); node != "" {
		todo = slices.DeleteFunc(todo, func(p Pending) bool { return p.Node != node })
	}
	report := &millracev1.PendingReport{
		Role: c.def.Role, Host: c.def.Host, Member: c.member(), At: timestamppb.New(c.clusterTime()), Total: uint64(len(todo)),
	}
	limit := maxPending
	if asked := request.GetLimit(); asked > 0 {
		limit = int(min(asked, maxPending))
	}
	for _, p := range soonest(todo)[:min(limit, len(todo))] {
		report.Items = append(report.Items, p.proto())
	}
	return c.bounded(report)
}

// bounded forms a report that fits into a message: what is due last is left out.
func (c *Controller) bounded(report *millracev1.PendingReport) []byte {
	for {
		b, err := proto.Marshal(report)
		if err != nil {
			c.log.Error("forming a report", "err", err)
			return nil
		}
		if len(b) <= maxReportBytes || len(report.GetItems()) == 0 {
			return b
		}
		report.Items = report.Items[:len(report.Items)/2]
	}
}

// soonest sorts by when things are due, those of unknown time last.
func soonest(todo []Pending) []Pending {
	slices.SortFunc(todo, func(a, b Pending) int {
		return cmp.Or(
			cmp.Compare(unknown(a.Due), unknown(b.Due)), a.Due.Compare(b.Due),
			cmp.Compare(a.Object.Kind, b.Object.Kind), a.Object.Key.Compare(b.Object.Key),
		)
	})
	return todo
}

func unknown(t time.Time) int {
	if t.IsZero() {
		return 1
	}
	return 0
}

func (p Pending) proto() *millracev1.PendingItem {
	item := &millracev1.PendingItem{Object: p.Object.proto(), Node: p.Node, Why: oneLine(p.Why), Waiting: oneLine(p.Waiting)}
	if !p.Due.IsZero() {
		item.Due = timestamppb.New(p.Due)
	}
	return item
}

// member is the id under which this process holds partitions; empty while it holds
// none.
func (c *Controller) member() string {
	for _, p := range c.partitions() {
		return p.Member()
	}
	return ""
}
