package bus

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/millrace-io/millrace/shared/partition"
)

// Config is everything an operator may set about NATS. An outer struct gives it
// the prefix: MILLRACE_NATS_URL and so on.
type Config struct {
	// URL lists the servers, separated by commas. Default: a server on this
	// machine.
	URL string `split_words:"true" default:"nats://127.0.0.1:4222"`
	// CredsFile is a file with a user JWT and its key. Default: none.
	CredsFile string `split_words:"true"`
	// User and PasswordFile log in by password. Default: none.
	User         string `split_words:"true"`
	PasswordFile string `split_words:"true"`
	// CAFile, CertFile and KeyFile are PEM files for TLS. Default: none; the
	// system's roots where the URL says tls://.
	CAFile   string `split_words:"true"`
	CertFile string `split_words:"true"`
	KeyFile  string `split_words:"true"`

	// Cluster is the id of the Kubernetes cluster on the bus; it is part of
	// every stream name and subject. Lower-case letters, digits and dashes, at
	// most 32. Default: default.
	Cluster string `split_words:"true" default:"default"`
	// Partitions is P, the number of slices of the key space, 1 to 256; part of
	// the wire, so it changes only with `millrace bus reset`. Unit: partitions.
	// Default: docs/adr/0003-partitions.md.
	Partitions int `split_words:"true" default:"32"`
	// Replicas is how many servers keep each stream: 0, 1, 3 or 5. Unit:
	// servers. Default: 0, which is 3 in a NATS cluster and 1 elsewhere.
	Replicas int `split_words:"true" default:"0"`
	// Storage is file or memory. Default: file.
	Storage string `split_words:"true" default:"file"`
	// MaxBytes bounds the event stream; a full one refuses new keys and raises
	// an alarm. The server sets that much aside. Unit: bytes. Default: 4 GiB,
	// enough for a million pods of 3 KB, uncompressed.
	MaxBytes int64 `split_words:"true" default:"4294967296"`
	// DecisionsMaxAge is how long decision records are kept. Unit: Go duration.
	// Default: a week.
	DecisionsMaxAge time.Duration `split_words:"true" default:"168h"`
	// DecisionsMaxBytes bounds the decision records; the oldest go first. Unit:
	// bytes. Default: 256 MiB.
	DecisionsMaxBytes int64 `split_words:"true" default:"268435456"`
	// DecisionsPerObject bounds the records of one key's writes to one object:
	// one that changes every second must not push out all others. Unit: records.
	// Default: ours; what a person reads.
	DecisionsPerObject int64 `split_words:"true" default:"32"`
}

// Settings are named as an operator sets them.
const settingPrefix = "MILLRACE_NATS_"

var clusterShape = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// Validate says in one line what is wrong.
func (c Config) Validate() error {
	var problems []error
	refuse := func(setting, format string, args ...any) {
		problems = append(problems, errors.New(settingPrefix+setting+" "+fmt.Sprintf(format, args...)))
	}
	if err := validURL(c.URL); err != nil {
		refuse("URL", "is %q: %s", c.redactedURL(), err)
	}
	if !clusterShape.MatchString(c.Cluster) {
		refuse("CLUSTER", "is %q; it must be 1 to 32 lower-case letters, digits and dashes", c.Cluster)
	}
	if c.Partitions < 1 || c.Partitions > partition.Max {
		refuse("PARTITIONS", "is %d; it must be 1 to %d", c.Partitions, partition.Max)
	}
	if c.Replicas != 0 && c.Replicas != 1 && c.Replicas != 3 && c.Replicas != 5 {
		refuse("REPLICAS", "is %d; it must be 0, 1, 3 or 5", c.Replicas)
	}
	if c.Storage != "file" && c.Storage != "memory" {
		refuse("STORAGE", "is %q; it must be file or memory", c.Storage)
	}
	if c.DecisionsMaxAge <= 0 {
		refuse("DECISIONS_MAX_AGE", "is %s; it must be positive", c.DecisionsMaxAge)
	}
	for _, bound := range []struct {
		setting string
		value   int64
	}{{"MAX_BYTES", c.MaxBytes}, {"DECISIONS_MAX_BYTES", c.DecisionsMaxBytes}, {"DECISIONS_PER_OBJECT", c.DecisionsPerObject}} {
		if bound.value <= 0 {
			refuse(bound.setting, "is %d; it must be positive", bound.value)
		}
	}
	if (c.User == "") != (c.PasswordFile == "") {
		refuse("USER", "and %sPASSWORD_FILE go together", settingPrefix)
	}
	if c.User != "" && c.CredsFile != "" {
		refuse("USER", "and %sCREDS_FILE exclude each other", settingPrefix)
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		refuse("CERT_FILE", "and %sKEY_FILE go together", settingPrefix)
	}
	return errors.Join(problems...)
}

func validURL(list string) error {
	for one := range strings.SplitSeq(list, ",") {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil {
			return errors.New("no URL")
		}
		switch u.Scheme {
		case "nats", "tls", "ws", "wss":
		default:
			return errors.New("the scheme must be nats, tls, ws or wss")
		}
		if u.Host == "" {
			return errors.New("there is no host")
		}
	}
	return nil
}

// redactedURL is URL without passwords, for logs and errors.
func (c Config) redactedURL() string {
	list := strings.Split(c.URL, ",")
	for i, one := range list {
		u, err := url.Parse(strings.TrimSpace(one))
		if err != nil {
			list[i] = "(unreadable)"
			continue
		}
		list[i] = u.Redacted()
	}
	return strings.Join(list, ",")
}
