package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/kelseyhightower/envconfig"
)

// ErrConfig marks a mistake in the configuration: one clear line, exit code 2.
var ErrConfig = errors.New("bad configuration")

func configError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrConfig, fmt.Errorf(format, args...))
}

// Setting is one variable that a configuration struct reads.
type Setting struct {
	// Name is the variable: MILLRACE_NODE_MONITOR_GRACE_PERIOD.
	Name string
	// Alt is a variable that is read when Name is not set; empty for none.
	Alt     string
	Default string
	Type    string
	Value   string // as in the struct now
	Secret  bool
}

// Shown returns the value, or that there is one; in a URL only the user and
// password are hidden.
func (s Setting) Shown() string {
	if s.Secret && s.Value != "" {
		return "(secret)"
	}
	return Redact(s.Value)
}

// Redact hides the user and password of URLs in a text.
func Redact(text string) string { return userInfo.ReplaceAllString(text, "://(secret)@") }

var userInfo = regexp.MustCompile(`://[^/@\s]+@`)

// SettingsOf returns what spec, a pointer to a struct, reads, in the order of
// its fields. It is envconfig's own walk over the struct, so it cannot differ
// from what envconfig reads.
func SettingsOf(prefix string, spec any) ([]Setting, error) {
	var all []Setting
	collect := func(key, alt, name string, tags reflect.StructTag, field reflect.Value) string {
		all = append(all, Setting{
			Name: key, Alt: alt, Default: tags.Get("default"), Type: field.Type().String(),
			Value: show(field), Secret: isSecret(name, tags),
		})
		return ""
	}
	t := template.Must(template.New("settings").Funcs(template.FuncMap{"collect": collect}).
		Parse(`{{range .}}{{collect .Key .Alt .Name .Tags .Field}}{{end}}`))
	if err := envconfig.Usaget(prefix, spec, io.Discard, t); err != nil {
		return nil, fmt.Errorf("walking %T: %w", spec, err)
	}
	return all, nil
}

func show(field reflect.Value) string {
	for field.Kind() == reflect.Pointer {
		if field.IsNil() {
			return ""
		}
		field = field.Elem()
	}
	if !field.CanInterface() {
		return ""
	}
	return fmt.Sprint(field.Interface())
}

// secretWords in a field's name make it a secret, tag or no tag.
var secretWords = []string{"password", "token", "secret", "credential", "privatekey"}

func isSecret(name string, tags reflect.StructTag) bool {
	switch tags.Get("secret") {
	case "true":
		return true
	case "false":
		return false
	}
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretWords, func(word string) bool { return strings.Contains(name, word) })
}

// Load fills spec, a pointer to a struct, from the environment. It refuses what
// cannot be parsed, what a Validate method in spec (of spec itself or of a
// struct in it) objects to, and every variable with the prefix that neither spec
// nor known (pointers to the structs of all roles) read. The variables that
// Kubernetes injects for Services whose name begins like our prefix are not
// ours. Errors are ErrConfig and one line.
func Load(prefix string, spec any, known ...any) error {
	return load(prefix, spec, known, os.Environ())
}

func load(prefix string, spec any, known []any, environ []string) error {
	names := map[string]bool{}
	for _, s := range append([]any{spec}, known...) {
		settings, err := SettingsOf(prefix, s)
		if err != nil {
			return configError("%w", err)
		}
		for _, setting := range settings {
			names[setting.Name] = true
		}
	}
	if err := refuseUnknown(strings.ToUpper(prefix)+"_", names, environ); err != nil {
		return err
	}
	if err := envconfig.Process(prefix, spec); err != nil {
		return parseError(prefix, spec, err)
	}
	return validate(strings.ToUpper(prefix), reflect.ValueOf(spec))
}

// parseError says which variable, what it is, and what is expected.
func parseError(prefix string, spec any, err error) error {
	var p *envconfig.ParseError
	if !errors.As(err, &p) {
		return configError("%w", err) // a required variable is missing: envconfig names it
	}
	name, value := p.KeyName, p.Value
	settings, walkErr := SettingsOf(prefix, spec)
	if walkErr == nil {
		for _, s := range settings {
			if s.Name != name {
				continue
			}
			if _, set := os.LookupEnv(name); !set && s.Alt != "" {
				name = s.Alt
			}
			if s.Secret {
				value = "(secret)"
			}
		}
	}
	return configError("%s is %q; it must be %s", name, value, expected(p.TypeName, p.Err))
}

func expected(typeName string, err error) string {
	switch strings.TrimPrefix(typeName, "*") {
	case reflect.TypeFor[time.Duration]().String():
		return "a duration with a unit, such as 500ms, 40s or 5m"
	case "bool":
		return "true or false"
	case "int", "int8", "int16", "int32", "int64":
		return "a whole number"
	case "uint", "uint8", "uint16", "uint32", "uint64":
		return "a whole number, not negative"
	case "float32", "float64":
		return "a number"
	default:
		return fmt.Sprintf("a %s (%v)", typeName, err)
	}
}

// validate calls Validate on every struct in v that has it, the inner ones
// first; their errors are told with the prefix of their variables.
func validate(prefix string, v reflect.Value) error {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct {
		return nil
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		inner := prefix
		if !f.Anonymous {
			inner += "_" + strings.ToUpper(cmpOr(f.Tag.Get("envconfig"), f.Name))
		}
		if err := validate(inner, v.Field(i)); err != nil {
			return err
		}
	}
	if !v.CanAddr() {
		return nil
	}
	checked, ok := reflect.TypeAssert[interface{ Validate() error }](v.Addr())
	if !ok {
		return nil
	}
	if err := checked.Validate(); err != nil {
		if errors.Is(err, ErrConfig) {
			return err
		}
		if strings.HasPrefix(err.Error(), prefix+"_") { // it names the variable itself
			return configError("%w", err)
		}
		return configError("%s: %w", prefix, err)
	}
	return nil
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// refuseUnknown names the first variable with the prefix that nobody reads, in
// alphabetical order, and the nearest one that somebody does.
func refuseUnknown(prefix string, known map[string]bool, environ []string) error {
	vars := map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, prefix) {
			vars[name] = value
		}
	}
	var unknown []string
	for name := range vars {
		if !known[name] && !isServiceLink(name, vars) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	name := unknown[0]
	if near := nearest(name, prefix, known); near != "" {
		return configError("%s is no setting of any role; did you mean %s?", name, near)
	}
	return configError("%s is no setting of any role", name)
}

// linkSuffix is what stands after a Service's name in a variable of the service
// links: kubelet, pkg/kubelet/envvars, v1.37.
var linkSuffix = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// isServiceLink reports whether Kubernetes injected name. It believes that only
// of Services that came complete, with a host and a port: a setting that merely
// ends in _PORT does not pass.
func isServiceLink(name string, vars map[string]string) bool {
	for i := range name {
		if name[i] != '_' || !linkSuffix.MatchString(name[i:]) {
			continue
		}
		if at := linkSuffix.FindStringIndex(name[i:]); at[0] != 0 {
			continue
		}
		service := name[:i]
		_, host := vars[service+"_SERVICE_HOST"]
		_, port := vars[service+"_SERVICE_PORT"]
		if host && port {
			return true
		}
	}
	return false
}

// nearest returns the known name that takes the fewest edits, if few.
func nearest(name, prefix string, known map[string]bool) string {
	best, least := "", max(2, len(name[len(prefix):])/3)+1
	for candidate := range known {
		d := distance(name, candidate)
		if d < least || d == least && best != "" && candidate < best {
			best, least = candidate, d
		}
	}
	return best
}

// distance is that of Levenshtein, a swap of neighbours counting as one edit.
func distance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// oneLine joins the lines of an error.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' }), "; ")
}
