// Package beat holds the rules by which the silence of a node is measured on one
// side of the bus and judged on the other: Ages, which the watcher of nodes and
// Leases keeps, and Silence, which a controller keeps of each partition it
// judges. Both are pure: what they are told goes in as method calls with an
// explicit clock, and they do nothing by themselves.
//
// What they promise together: a node that beats is never judged silent, whoever
// is killed, frozen, hung or away; and a silent one is, when nothing is wrong, as
// soon as its grace has passed.
//
// A machine is not safe for concurrent use.
package beat
