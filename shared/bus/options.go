package bus

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	// quickWait is the pause before each of the first quickTries, reconnectWait
	// before later ones; both are spread by as much again, because all members
	// come back at once. Unit: time. Source: a connection that drops alone must
	// be back before others have twice, 200 ms apart, found nobody there.
	quickWait     = 30 * time.Millisecond
	quickTries    = 4
	reconnectWait = 250 * time.Millisecond
	// dialWait bounds one try. Unit: time.
	dialWait = 2 * time.Second
	// pingInterval and pingsOut find a frozen connection in 4 to 6 s. Unit: time,
	// pings. Source: below the 8 s that invariant I8 grants a freeze.
	pingInterval = 2 * time.Second
	pingsOut     = 2
	// writeWait bounds one write to the socket. Unit: time. Source: a publisher
	// must not block for longer than the answer it waits for.
	writeWait = 2 * time.Second
)

// options is everything the connection is told.
func (b *Bus) options() ([]nats.Option, error) {
	reported := &once{}
	options := []nats.Option{
		nats.Name("millrace-" + b.name),
		nats.CustomInboxPrefix("_INBOX_" + token(b.name)),
		nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1),
		nats.CustomReconnectDelay(reconnectDelay),
		nats.ReconnectBufSize(-1), // ⚠ nothing is kept while the server is away
		nats.ReconnectOnFlusherError(),
		nats.IgnoreAuthErrorAbort(), // credentials are rotated under us
		nats.Timeout(dialWait),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(pingsOut),
		nats.FlusherTimeout(writeWait),
		nats.ConnectHandler(func(nc *nats.Conn) { b.connected(nc, false) }),
		nats.ReconnectHandler(func(nc *nats.Conn) { b.connected(nc, true) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { b.disconnected(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if reported.first(err) {
				b.log.Warn("cannot connect to NATS, trying on", "server", b.cfg.redactedURL(), "err", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrSlowConsumer) {
				return // the feed's own count of messages finds what was dropped
			}
			if reported.first(err) {
				b.log.Error("NATS refuses", "err", err)
			}
		}),
	}
	login, err := b.login()
	return append(options, login...), err
}

// reconnectDelay is the pause before a try; attempts counts from 1.
func reconnectDelay(attempts int) time.Duration {
	wait := reconnectWait
	if attempts <= quickTries {
		wait = quickWait
	}
	return wait + rand.N(wait) //nolint:gosec // spreading, not secrecy
}

// login is who we are, from files that are read at each connect.
func (b *Bus) login() ([]nats.Option, error) {
	c := b.cfg
	for _, file := range []string{c.CredsFile, c.PasswordFile, c.CAFile, c.CertFile, c.KeyFile} {
		if file == "" {
			continue
		}
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("reading file: %w", err)
		}
	}
	var options []nats.Option
	if c.CredsFile != "" {
		options = append(options, nats.UserCredentials(c.CredsFile))
	}
	if c.User != "" {
		options = append(options, nats.UserInfoHandler(func() (string, string) {
			password, err := os.ReadFile(c.PasswordFile)
			if err != nil {
				b.log.Error("cannot read the password of NATS", "err", err)
			}
			return c.User, strings.TrimSpace(string(password))
		}))
	}
	if c.CAFile != "" {
		options = append(options, nats.RootCAs(c.CAFile))
	}
	if c.CertFile != "" {
		options = append(options, nats.ClientCert(c.CertFile, c.KeyFile))
	}
	return options, nil
}

func (b *Bus) connected(nc *nats.Conn, again bool) {
	if again {
		b.metrics.reconnects.Inc()
	}
	b.metrics.connected.Set(1)
	b.log.Info("connected to NATS", "server", nc.ConnectedUrlRedacted(), "version", nc.ConnectedServerVersion())
	b.link.set(true, nc.ConnectedServerId(), nc.MaxPayload())
}

func (b *Bus) disconnected(err error) {
	b.metrics.connected.Set(0)
	b.link.set(false, "", 0)
	b.publisher.failAll(ErrDisconnected)
	if err != nil { // nil: we closed it ourselves
		b.log.Warn("disconnected from NATS", "err", err)
	}
}

// once remembers which errors were logged, by their text; it forgets all when
// there are too many.
type once struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (o *once) first(err error) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.seen[err.Error()] {
		return false
	}
	if o.seen == nil || len(o.seen) > 1000 {
		o.seen = map[string]bool{}
	}
	o.seen[err.Error()] = true
	return true
}

// token makes s usable as one token of an inbox or in a consumer's name: letters,
// digits and dashes stay, every other byte becomes "_".
func token(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-':
			return r
		default:
			return '_'
		}
	}, s)
}
