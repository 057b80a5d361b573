package bus

import "github.com/millrace-io/millrace/shared/event"

// Permissions are the subjects that a NATS user may publish to and subscribe to,
// as a server's configuration takes them.
type Permissions struct {
	Publish, Subscribe []string
}

// ControlPermissions are those of the operator and what `millrace mode` needs:
// the modes of roles, and no other fact.
func ControlPermissions(cluster string) Permissions {
	p := OperatorPermissions(cluster)
	p.Publish = append(p.Publish,
		"$KV."+string(Facts)+"_"+cluster+".mode.*",
		"$JS.API.STREAM.MSG.GET.KV_"+string(Facts)+"_"+cluster)
	return p
}

// OperatorPermissions are what `millrace status` and `millrace explain` need on a
// cluster: they read what members say, how far durable positions are behind, dead
// letters, decision records, and the last message of one object at a time. They
// can write nothing: no object, no lease, no position, no stream.
func OperatorPermissions(cluster string) Permissions {
	token := event.Token(cluster)
	letters, decisions, objects := "DLQ_"+cluster, "DECISIONS_"+cluster, "K8S_"+cluster
	return Permissions{
		Publish: []string{
			"millrace." + token + ".status",
			"$JS.API.STREAM.INFO.*",
			"$JS.API.CONSUMER.INFO." + objects + ".*",
			// Dead letters and records are read through a consumer that lives as long as the
			// command; its one filter is part of the subject.
			"$JS.API.CONSUMER.CREATE." + letters + ".*.dlq." + token + ".>",
			"$JS.API.CONSUMER.MSG.NEXT." + letters + ".*",
			"$JS.API.CONSUMER.DELETE." + letters + ".*",
			"$JS.API.STREAM.MSG.GET." + letters,
			"millrace." + token + ".explain",
			"millrace." + token + ".shadow",
			"$JS.API.CONSUMER.CREATE." + decisions + ".*.decisions." + token + ".>",
			"$JS.API.CONSUMER.MSG.NEXT." + decisions + ".*",
			"$JS.API.CONSUMER.DELETE." + decisions + ".*",
			// The object whose subject the request names, and no other: what a
			// consumer would bring is everything.
			"$JS.API.DIRECT.GET." + objects + "." + event.Root(cluster) + ".>",
		},
		Subscribe: []string{"_INBOX_operator.>"},
	}
}
