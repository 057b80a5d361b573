package controller

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// askWait bounds one request to a watcher. Unit: time. Source: ours; nothing
// depends on the answer, and a bookmark comes by itself within a second.
const askWait = 500 * time.Millisecond

// asker sends requests to watchers, one after the other. What finds it busy for
// long is dropped: it is asked again.
type asker struct {
	bus   Bus
	queue chan request
}

type request struct {
	subject string
	data    []byte
}

func newAsker(bus Bus) *asker { return &asker{bus: bus, queue: make(chan request, 256)} }

// mark asks for a bookmark of one slice at once.
func (a *asker) mark(kind event.Kind, slice int) { a.ask(kind, "mark", slice) }

// compare asks the watcher to compare the stream with its records.
func (a *asker) compare(kind event.Kind, slice int) { a.ask(kind, "compare", slice) }

func (a *asker) ask(kind event.Kind, what string, slice int) {
	select {
	case a.queue <- a.request(kind, what, slice):
	default:
	}
}

func (a *asker) request(kind event.Kind, what string, slice int) request {
	return request{
		subject: "millrace." + event.Token(a.bus.Cluster()) + ".watch." + event.Token(string(kind)) + "." + what,
		data:    []byte(strconv.Itoa(slice)),
	}
}

// markAfter asks for a bookmark of one slice and returns the last that was made
// before: what is made from now on has a greater counter, or another epoch.
func (a *asker) markAfter(ctx context.Context, kind event.Kind, slice int) (epoch, counter uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWait)
	defer cancel()
	r := a.request(kind, "mark", slice)
	answer, err := a.bus.Ask(ctx, r.subject, r.data)
	if err != nil {
		return 0, 0, fmt.Errorf("asking for a bookmark of %s: %w", kind, err)
	}
	if _, err := fmt.Sscan(string(answer), &epoch, &counter); err != nil {
		return 0, 0, fmt.Errorf("asking for a bookmark of %s: reading the answer: %w", kind, err)
	}
	return epoch, counter, nil
}

func (a *asker) run(ctx context.Context) {
	for {
		select {
		case r := <-a.queue:
			bounded, cancel := context.WithTimeout(ctx, askWait)
			_, _ = a.bus.Ask(bounded, r.subject, r.data) // a bookmark is the answer, or another question
			cancel()
		case <-ctx.Done():
			return
		}
	}
}
