package standalone

import (
	"fmt"
)

// Config is everything an operator may set.
type Config struct {
	// Dir is a folder in which the embedded NATS keeps its streams; it is made
	// when missing, and one process at a time may use it. Default: none, which is
	// memory: a restart then begins with a list of everything.
	Dir string `envconfig:"STANDALONE_DIR"`

	// NATS is what must not be set.
	NATS foreign `envconfig:"NATS"`
}

// foreign are the settings of a NATS that is not ours, under the names that the
// roles read. The embedded one is nobody else's business.
type foreign struct {
	URL          string `split_words:"true"`
	CredsFile    string `split_words:"true"`
	User         string `split_words:"true"`
	PasswordFile string `split_words:"true"`
	CAFile       string `split_words:"true"`
	CertFile     string `split_words:"true"`
	KeyFile      string `split_words:"true"`
	Replicas     string `split_words:"true"`
	Storage      string `split_words:"true"`
}

// Validate refuses settings of another NATS.
func (f foreign) Validate() error {
	for _, s := range []struct{ name, value, instead string }{
		{"URL", f.URL, ""},
		{"CREDS_FILE", f.CredsFile, ""},
		{"USER", f.User, ""},
		{"PASSWORD_FILE", f.PasswordFile, ""},
		{"CA_FILE", f.CAFile, ""},
		{"CERT_FILE", f.CertFile, ""},
		{"KEY_FILE", f.KeyFile, ""},
		{"REPLICAS", f.Replicas, ""},
		{"STORAGE", f.Storage, "; MILLRACE_STANDALONE_DIR decides"},
	} {
		if s.value != "" {
			return fmt.Errorf("MILLRACE_NATS_%s is set; standalone runs a NATS of its own%s", s.name, s.instead)
		}
	}
	return nil
}
