package millrace

import (
	_ "github.com/kelseyhightower/envconfig"
	_ "github.com/nats-io/nats-server/v2/server"
	_ "github.com/nats-io/nats.go/jetstream"
	_ "github.com/prometheus/client_golang/prometheus/promauto"
	_ "go.opentelemetry.io/otel"
	_ "go.uber.org/goleak"
	_ "github.com/google/go-cmp/cmp"
	_ "pgregory.net/rapid"
	_ "google.golang.org/protobuf/proto"
	_ "golang.org/x/sync/errgroup"
	_ "golang.org/x/time/rate"
	_ "k8s.io/api/core/v1"
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/metadata"
	_ "k8s.io/client-go/util/workqueue"
	_ "k8s.io/endpointslice"
)
