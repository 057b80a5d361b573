package bus

import "github.com/millrace-io/millrace/shared/event"

// Permissions are the subjects that a NATS user may publish to and subscribe to,
// as a server's configuration takes them.
type Permissions struct {
	Publish, Subscribe []string
}

// OperatorPermissions are what `millrace status` needs on a cluster: it reads
// what members say, how far durable positions are behind, and dead letters, and
// can write nothing: no object, no lease, no position, no stream.
func OperatorPermissions(cluster string) Permissions {
	token := event.Token(cluster)
	letters := "DLQ_" + cluster
	return Permissions{
		Publish: []string{
			"millrace." + token + ".status",
			"$JS.API.STREAM.INFO.*",
			"$JS.API.CONSUMER.INFO.K8S_" + cluster + ".*",
			// Dead letters are read through a consumer that lives as long as the
			// command; its one filter is part of the subject.
			"$JS.API.CONSUMER.CREATE." + letters + ".*.dlq." + token + ".>",
			"$JS.API.CONSUMER.MSG.NEXT." + letters + ".*",
			"$JS.API.CONSUMER.DELETE." + letters + ".*",
			"$JS.API.STREAM.MSG.GET." + letters,
		},
		Subscribe: []string{"_INBOX_operator.>"},
	}
}
