//go:build !unix

package standalone

import "os"

// lock does nothing where there is no flock: that one process uses the folder is
// the operator's care.
func lock(*os.File) error { return nil }
