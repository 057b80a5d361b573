//go:build unix

package standalone

import (
	"errors"
	"os"
	"syscall"
)

// lock takes the file for this process, or says that another has it. The kernel
// gives it back when the process is dead, however it died.
func lock(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errInUse
	}
	return err
}
