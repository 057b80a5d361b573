package operator

import (
	"context"
	"fmt"
	"os"
	"os/user"
	"strings"

	"github.com/millrace-io/millrace/shared/kube"
)

func pause(ctx context.Context, s session) error {
	if len(s.args) == 0 {
		return s.sayPaused(ctx)
	}
	return s.setPaused(ctx, "pause", true)
}

func resume(ctx context.Context, s session) error { return s.setPaused(ctx, "resume", false) }

// sayPaused says what is paused now.
func (s session) sayPaused(ctx context.Context) error {
	api, err := s.api()
	if err != nil {
		return err
	}
	words, err := api.Paused(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "paused by ConfigMap %s: %s\n", api.PauseKey(), said(words))
	return nil
}

// setPaused edits the annotation, and leaves an event about it. It needs the API
// server alone: a pause must be possible when NATS is away.
func (s session) setPaused(ctx context.Context, command string, on bool) error {
	words, err := flags(command, s.args, nil, "WHAT")
	if err != nil {
		return err
	}
	what := words[0]
	// What nobody obeys would look like a pause; but it can always be taken away.
	if _, role := s.roles[what]; on && what != kube.PauseEvictions && !role {
		return fmt.Errorf("%w: WHAT is %q; it must be %s or a role: %s", errUsage, what, kube.PauseEvictions, strings.Join(s.roleNames(), ", "))
	}
	api, err := s.api()
	if err != nil {
		return err
	}
	now, changed, err := api.SetPaused(ctx, what, on)
	if err != nil {
		return err
	}
	if !changed {
		fmt.Fprintf(s.out, "%s: nothing to do; paused by ConfigMap %s: %s\n", what, api.PauseKey(), said(now))
		return nil
	}
	reason, word := "Resumed", "resumed"
	if on {
		reason, word = "Paused", "paused"
	}
	fmt.Fprintf(s.out, "%s: %s; every replica obeys within a second; paused by ConfigMap %s: %s\n", what, word, api.PauseKey(), said(now))
	return api.TellPaused(ctx, reason, fmt.Sprintf("%s %s by millrace %s of %s; paused now: %s", what, word, command, who(), said(now)))
}

func said(words []string) string {
	if len(words) == 0 {
		return "nothing"
	}
	return strings.Join(words, ", ")
}

// who runs this command, for the event.
func who() string {
	host, _ := os.Hostname() // for people; empty is better than an excuse
	if u, err := user.Current(); err == nil {
		return u.Username + "@" + host
	}
	return host
}
