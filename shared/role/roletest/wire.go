package roletest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// Wire records what really leaves, and fails what a test wants to fail. Its zero
// value is ready for rest.Config.Wrap.
type Wire struct {
	next http.RoundTripper

	mu   sync.Mutex
	log  []Sent
	meet func(r *http.Request) int
}

// Sent is one request that left.
type Sent struct{ Verb, Path, Body string }

// NoAnswer is the status of a request that nobody answers.
const NoAnswer = -1

// Wrap puts the wire before the transport of a client.
func (w *Wire) Wrap(next http.RoundTripper) http.RoundTripper {
	w.next = next
	return w
}

// RoundTrip implements http.RoundTripper.
func (w *Wire) RoundTrip(r *http.Request) (*http.Response, error) {
	s := Sent{Verb: r.Method, Path: r.URL.Path}
	if r.Body != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.Body = string(body)
	}
	w.mu.Lock()
	w.log = append(w.log, s)
	meet := w.meet
	w.mu.Unlock()
	if meet != nil {
		if status := meet(r); status != 0 {
			if status == NoAnswer {
				return nil, errors.New("no answer")
			}
			return Refusal(r, status), nil
		}
	}
	return w.next.RoundTrip(r)
}

// Refusal answers a request with a status that is none of success.
func Refusal(r *http.Request, status int) *http.Response {
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"as the test wants","code":%d}`, status)
	return &http.Response{
		StatusCode: status, Request: r, ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}
}

// Meets calls fn before each request leaves, which may only do so if fn returns 0:
// else fn's status answers it, or nobody. Nil ends that.
func (w *Wire) Meets(fn func(r *http.Request) (status int)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.meet = fn
}

// Answer makes every request of a verb fail with a status; "" ends that.
func (w *Wire) Answer(verb string, status int) {
	if verb == "" {
		w.Meets(nil)
		return
	}
	w.Meets(func(r *http.Request) int {
		if r.Method == verb {
			return status
		}
		return 0
	})
}

// Take returns what left since the last call.
func (w *Wire) Take() []Sent {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.log
	w.log = nil
	return log
}

// Writes is Take of writes, and of reads their number.
func (w *Wire) Writes() (writes []Sent, reads int) {
	for _, s := range w.Take() {
		if s.Verb == http.MethodGet {
			reads++
		} else {
			writes = append(writes, s)
		}
	}
	return writes, reads
}

// String says what was asked of what: "PATCH pods/status". The version of the API,
// the namespace and the name are left out.
func (s Sent) String() string {
	parts := strings.Split(strings.Trim(s.Path, "/"), "/")
	if len(parts) > 0 && parts[0] == "api" { // api/v1, or apis/group/v1
		parts = parts[min(2, len(parts)):]
	} else {
		parts = parts[min(3, len(parts)):]
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	out := parts[:min(1, len(parts))]
	if len(parts) > 2 {
		out = append(out[:1:1], parts[2:]...)
	}
	return s.Verb + " " + strings.Join(out, "/")
}

// Object is the body as an object of the API; nil for what is none, like a patch.
func (s Sent) Object() runtime.Object {
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode([]byte(s.Body), nil, nil)
	if err != nil {
		return nil
	}
	return object
}
