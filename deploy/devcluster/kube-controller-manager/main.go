// Command kube-controller-manager is upstream's, unchanged: the reference that
// millrace is compared with, in behaviour and in speed.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	// The Prometheus plugins fill the metrics that comparisons read.
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() {
	os.Exit(cli.Run(app.NewControllerManagerCommand()))
}
