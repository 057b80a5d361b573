package kubetest

import (
	"os/exec"
	"syscall"
)

// dieWithParent leaves no orphan behind when a test is killed.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
