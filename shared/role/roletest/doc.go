// Package roletest is what the tests of a role put in the place of the frame that
// runs it: a partition whose inputs are what the test tells, facts that stay in
// memory, tokens that are good for ever, and a wire that records what really
// leaves for the API server, which is a real one (kubetest). It starts nothing and
// judges nothing.
package roletest
