// Package kubetest gives tests, demos and benchmarks a real API server, a
// kubelet that only pretends, and ways to break both.
//
// It starts binaries of deploy/devcluster as child processes and talks to them
// as anybody would. It is imported by tests and by programs that measure, never
// by a service, and it refuses to skip: where the API server cannot be built or
// started, the test fails.
package kubetest
