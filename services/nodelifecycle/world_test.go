package nodelifecycle

import "github.com/millrace-io/millrace/shared/role/roletest"

func newWorld(partitions int) *roletest.World {
	return roletest.NewWorld(partitions, partitionInputs(), wideInputs())
}
