package bus

import "github.com/millrace-io/millrace/shared/event"

// Permissions are the subjects that a NATS user may publish to and subscribe to,
// as a server's configuration takes them.
type Permissions struct {
	Publish, Subscribe []string
}

// ControlPermissions are those of the operator and what `millrace mode` needs:
// the modes of roles. No other fact can be written; but a header of NATS lets
// whoever writes one key of a bucket drop all others, and no permission forbids
// a header: give them to those you would let restart the roles.
func ControlPermissions(cluster string) Permissions {
	p := OperatorPermissions(cluster)
	p.Publish = append(p.Publish,
		"$KV."+string(Facts)+"_"+cluster+".mode.*",
		"$JS.API.STREAM.MSG.GET.KV_"+string(Facts)+"_"+cluster)
	return p
}

// OperatorPermissions are what `millrace status`, `millrace explain` and `millrace
// evictions` need on a cluster: they read what members say, how far durable positions are behind, dead
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
			// Dead letters and records are asked for one by one. Not through a
			// consumer: whoever may make one may have it send what it reads to any
			// subject, past his own rights.
			"$JS.API.STREAM.MSG.GET." + letters,
			"$JS.API.STREAM.MSG.GET." + decisions,
			"millrace." + token + ".explain",
			"millrace." + token + ".shadow",
			"millrace." + token + ".pending",
			// The object whose subject the request names, and no other: what a
			// consumer would bring is everything.
			"$JS.API.DIRECT.GET." + objects + "." + event.Root(cluster) + ".>",
		},
		Subscribe: []string{"_INBOX_operator.>"},
	}
}
