package standalone

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace-io/millrace/shared/process"
)

// errInUse: another process has the folder.
var errInUse = errors.New("another process uses it")

// Files in the folder.
const (
	lockFile = "lock"     // held by the process that uses the folder
	urlFile  = "nats.url" // where its NATS is, with the password: for its owner alone
	natsDir  = "nats"
)

// folder is where the embedded NATS keeps its streams; the zero value is memory.
type folder struct {
	dir  string
	lock *os.File
}

// occupy makes the folder ours until leave, or until this process is dead.
func occupy(dir string) (*folder, error) {
	if dir == "" {
		return &folder{}, nil
	}
	f := &folder{dir: dir}
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		f.lock, err = os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: MILLRACE_STANDALONE_DIR: %w", process.ErrConfig, err)
	}
	if err := lock(f.lock); err != nil {
		_ = f.lock.Close() // nothing was written
		return nil, fmt.Errorf("%w: MILLRACE_STANDALONE_DIR is %s: %w", process.ErrConfig, dir, err)
	}
	return f, nil
}

func (f *folder) storage() string {
	if f.dir == "" {
		return "memory"
	}
	return "file"
}

// streams is where the server puts them; empty for memory, for which it needs a
// temporary place all the same.
func (f *folder) streams() string {
	if f.dir == "" {
		return ""
	}
	return filepath.Join(f.dir, natsDir)
}

// tell writes down where NATS is, so that the folder's owner may ask with
// `millrace status`. Renamed into place: nobody reads half a password.
func (f *folder) tell(url string) error {
	if f.dir == "" {
		return nil
	}
	path := filepath.Join(f.dir, urlFile)
	if err := os.WriteFile(path+".new", []byte(url+"\n"), 0o600); err != nil {
		return fmt.Errorf("writing the address of NATS: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("writing the address of NATS: %w", err)
	}
	return nil
}

// leave gives the folder up. The address goes: nobody answers there any more.
func (f *folder) leave() {
	if f.dir == "" {
		return
	}
	_ = os.Remove(filepath.Join(f.dir, urlFile)) // the next start writes it anew
	_ = f.lock.Close()                           // which unlocks it
}
