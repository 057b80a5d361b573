package controller

import "time"

// Pending is one thing that a member has still to do.
type Pending struct {
	Object Ref
	// Node is the node that it is about, and Why the reason, both for people.
	Node, Why string
	// Due is when it is to be done, or was.
	Due time.Time
	// Waiting is for what: "time", "rate", "freshness", "pause", "shadow",
	// "quarantine", "retry: " and the error.
	Waiting string
}
