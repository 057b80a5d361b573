package operator

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/lease"
)

// modeDefault takes back what was set.
const modeDefault = "default"

// followWait is how long a command waits for the members to follow. Unit: time.
// Source: they are told within milliseconds.
const followWait = 5 * time.Second

func mode(ctx context.Context, s session) error {
	if len(s.args) == 0 {
		for _, role := range s.roleNames() {
			if err := s.sayMode(ctx, role); err != nil {
				return err
			}
		}
		return nil
	}
	if len(s.args) == 1 {
		words, err := flags("mode", s.args, nil, "ROLE")
		if err != nil {
			return err
		}
		return s.sayMode(ctx, words[0])
	}
	words, err := flags("mode", s.args, nil, "ROLE", "MODE")
	if err != nil {
		return err
	}
	role, want := words[0], words[1]
	if want != modeDefault && !controller.ValidMode(want) {
		return fmt.Errorf("%w: MODE is %q; it must be off, shadow, active or default", errUsage, want)
	}
	if want != modeDefault { // what nobody follows would look like a mode
		if err := s.exists(role); err != nil {
			return err
		}
	}
	if err := SetMode(ctx, s.bus, role, want); err != nil {
		return err
	}
	return s.awaitMode(ctx, role, want)
}

// exists says that there is no such role, or no such part of it.
func (s session) exists(role string) error {
	name, part, parted := strings.Cut(role, "/")
	parts, there := s.roles[name]
	switch {
	case !there:
		return fmt.Errorf("%w: ROLE is %q; there are: %s", errUsage, name, strings.Join(s.roleNames(), ", "))
	case parted && len(parts) == 0:
		return fmt.Errorf("%w: PART is %q; %s has no parts", errUsage, part, name)
	case parted && !slices.Contains(parts, part):
		return fmt.Errorf("%w: PART is %q; parts of %s are: %s", errUsage, part, name, strings.Join(parts, ", "))
	}
	return nil
}

// roleNames are the roles in order.
func (s session) roleNames() []string { return slices.Sorted(maps.Keys(s.roles)) }

// SetMode puts a role, or ROLE/PART, in a mode, or with "default" lets each member's setting
// count again.
func SetMode(ctx context.Context, b *bus.Bus, role, mode string) error {
	key, facts := controller.ModeKey(role), b.KV(bus.Facts)
	for {
		_, rev, err := facts.Get(ctx, key)
		none := errors.Is(err, bus.ErrNone)
		switch {
		case err != nil && !none:
			return fmt.Errorf("reading the mode of %s: %w", role, err)
		case none && mode == modeDefault:
			return nil
		case none:
			rev = 0
		}
		if mode == modeDefault {
			err = facts.Delete(ctx, key, rev)
		} else {
			_, err = facts.Put(ctx, key, []byte(mode), rev, 0)
		}
		if !errors.Is(err, bus.ErrRefused) { // another command came first: read what it set
			return err
		}
	}
}

// sayMode says what is set of a role and of its parts, or of one part, and what
// holds at each member.
func (s session) sayMode(ctx context.Context, role string) error {
	name, part, parted := strings.Cut(role, "/")
	if parted {
		if err := s.exists(role); err != nil {
			return err
		}
	}
	if err := s.saySet(ctx, role, parted); err != nil {
		return err
	}
	members, err := modesOf(ctx, s.bus, name)
	if err != nil {
		return err
	}
	if !parted {
		for _, part := range partsOf(members) {
			if err := s.saySet(ctx, controller.PartName(name, part), true); err != nil {
				return err
			}
		}
	}
	for _, host := range slices.Sorted(maps.Keys(members)) {
		if m := members[host]; parted {
			fmt.Fprintf(s.out, "  %s is %s\n", host, cmp.Or(m.parts[part].Mode, "of a release that has no such part"))
		} else {
			fmt.Fprintf(s.out, "  %s is %s\n", host, modeText(m.mode, m.status))
		}
	}
	return nil
}

// saySet says what is set in the bucket.
func (s session) saySet(ctx context.Context, name string, part bool) error {
	switch set, _, err := s.bus.KV(bus.Facts).Get(ctx, controller.ModeKey(name)); {
	case errors.Is(err, bus.ErrNone) && part:
		fmt.Fprintf(s.out, "%s: none is set, the setting of each member counts\n", name)
	case errors.Is(err, bus.ErrNone):
		fmt.Fprintf(s.out, "%s: none is set, MILLRACE_CONTROLLER_MODE of each member counts\n", name)
	case err != nil:
		return fmt.Errorf("reading the mode of %s: %w", name, err)
	default:
		fmt.Fprintf(s.out, "%s: %s\n", name, set)
	}
	return nil
}

// memberMode is what a member says of its modes.
type memberMode struct {
	mode   string
	status []PartMode
	parts  map[string]PartMode
}

// of returns the mode that can be set of the role, or with a name of the part.
func (m memberMode) of(part string) string {
	if part == "" {
		return m.mode
	}
	return m.parts[part].Own
}

// partsOf returns all parts that members have, in order.
func partsOf(members map[string]memberMode) []string {
	parts := map[string]struct{}{}
	for _, m := range members {
		for part := range m.parts {
			parts[part] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(parts))
}

// modesOf asks the members of a role; by host, which is the pod: a member that
// joins again, as after off, has another id.
func modesOf(ctx context.Context, b *bus.Bus, role string) (map[string]memberMode, error) {
	answers, err := b.AskAll(ctx, lease.StatusSubject(b.Cluster()), nil, gatherWait)
	if err != nil && !errors.Is(err, event.ErrNoResponders) {
		return nil, fmt.Errorf("asking members: %w", err)
	}
	out := map[string]memberMode{}
	for _, a := range answers {
		m := &millracev1.MemberStatus{}
		if err := proto.Unmarshal(a, m); err != nil {
			return nil, fmt.Errorf("reading a member's answer: %w", err)
		}
		if m.GetMember().GetRole() != role {
			continue
		}
		said := memberMode{mode: m.GetMode(), status: partModes(m.GetParts()), parts: map[string]PartMode{}}
		for _, p := range said.status {
			said.parts[p.Part] = p
		}
		out[m.GetMember().GetHost()] = said
	}
	return out, nil
}

// awaitMode waits until all members follow that have answered at least once, and
// says how many do. One that is slow to answer may be missing from a round: it
// takes two in which nobody new has come.
func (s session) awaitMode(ctx context.Context, role, want string) error {
	name, part, _ := strings.Cut(role, "/")
	members, same := map[string]string{}, 0
	for began := time.Now(); ; {
		answers, err := modesOf(ctx, s.bus, name)
		if err != nil {
			return err
		}
		same++
		for id := range answers {
			if _, known := members[id]; !known {
				same = 1
			}
		}
		for id := range members {
			members[id] = "" // until it says more
		}
		for id, m := range answers {
			members[id] = m.of(part)
		}
		following := 0
		for _, mode := range members {
			if mode == want || want == modeDefault {
				following++
			}
		}
		switch {
		case same < 2 && time.Since(began) < followWait:
		case len(members) == 0:
			fmt.Fprintf(s.out, "%s: %s is set; no member of that role answers\n", role, want)
			return nil
		case following == len(members):
			fmt.Fprintf(s.out, "%s: %s, %d of %d members follow\n", role, want, following, len(members))
			return nil
		case time.Since(began) > followWait:
			return fmt.Errorf("%s is set to %s, but only %d of %d members follow", role, want, following, len(members))
		}
	}
}

// ShadowReport is how far what a role in shadow mode would have written differs
// from what the cluster has become.
type ShadowReport struct {
	Role string `json:"role"`
	// Members in shadow mode, and all that answered.
	Shadowing int `json:"shadowing"`
	Members   int `json:"members"`
	// Agreed: keys that wanted a write and want none any more. Equal: keys that
	// want one which changes nothing that counts. Differing: all others.
	Agreed    uint64      `json:"agreed"`
	Equal     uint64      `json:"equal"`
	Differing uint64      `json:"differing"`
	Dropped   uint64      `json:"dropped,omitempty"`
	Keys      []ShadowKey `json:"keys,omitempty"`
}

// ShadowKey is one key that differs.
type ShadowKey struct {
	Key          string       `json:"key"`
	Host         string       `json:"host"`
	SinceSeconds float64      `json:"sinceSeconds"`
	Writes       []string     `json:"writes"`
	Differences  []Difference `json:"differences"`
}

// Difference is one field.
type Difference struct {
	Field string `json:"field"`
	Want  string `json:"want"`
	Have  string `json:"have"`
}

func shadow(ctx context.Context, s session) error {
	format := ""
	words, err := flags("shadow", s.args, func(fs *flag.FlagSet) { outputFlag(fs, &format) }, "ROLE")
	if err != nil {
		return err
	}
	report, err := Shadow(ctx, s.bus, words[0])
	if err != nil {
		return err
	}
	return s.print(format, report, func(w io.Writer) error { return renderShadow(w, report) })
}

// Shadow asks the members of a role.
func Shadow(ctx context.Context, b *bus.Bus, role string) (*ShadowReport, error) {
	request, err := proto.Marshal(&millracev1.ShadowRequest{Role: role})
	if err != nil {
		return nil, fmt.Errorf("forming a request: %w", err)
	}
	answers, err := b.AskAll(ctx, controller.ShadowSubject(b.Cluster()), request, gatherWait)
	if err != nil && !errors.Is(err, event.ErrNoResponders) {
		return nil, fmt.Errorf("asking members: %w", err)
	}
	out := &ShadowReport{Role: role}
	for _, data := range answers {
		a := &millracev1.ShadowReport{}
		if err := proto.Unmarshal(data, a); err != nil {
			return nil, fmt.Errorf("reading a member's answer: %w", err)
		}
		out.add(a)
	}
	return out, nil
}

func (r *ShadowReport) add(a *millracev1.ShadowReport) {
	r.Members++
	if a.GetMode() == controller.ModeShadow {
		r.Shadowing++
	}
	r.Agreed += a.GetAgreed()
	r.Equal += a.GetEqual()
	r.Differing += a.GetDiffering()
	r.Dropped += a.GetDropped()
	for _, k := range a.GetKeys() {
		key := ShadowKey{
			Key: k.GetKey().GetKind() + " " + keyOf(k.GetKey()), Host: a.GetHost(),
			SinceSeconds: k.GetSince().AsDuration().Seconds(), Writes: k.GetWrites(),
		}
		for _, d := range k.GetDifferences() {
			key.Differences = append(key.Differences, Difference{d.GetField(), d.GetWant(), d.GetHave()})
		}
		r.Keys = append(r.Keys, key)
	}
}

func renderShadow(w io.Writer, r *ShadowReport) error {
	fmt.Fprintf(w, "%s: %d of %d members are in shadow mode\n", r.Role, r.Shadowing, r.Members)
	fmt.Fprintf(w, "  %d keys came to agree, %d want a write that changes nothing that counts, %d differ\n", r.Agreed, r.Equal, r.Differing)
	if r.Dropped > 0 {
		fmt.Fprintf(w, "  %d keys were too many to compare\n", r.Dropped)
	}
	for _, k := range r.Keys {
		fmt.Fprintf(w, "\n%s, since %s, at %s\n", k.Key, seconds(k.SinceSeconds), k.Host)
		for _, held := range k.Writes {
			fmt.Fprintf(w, "  held back: %s\n", held)
		}
		for _, d := range k.Differences {
			fmt.Fprintf(w, "  %s\n    would be  %s\n    is        %s\n", d.Field, d.Want, d.Have)
		}
	}
	return nil
}
