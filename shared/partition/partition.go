// Package partition maps keys to partitions and partitions to members. It does
// no I/O and reads no clock.
package partition

import (
	"cmp"
	"slices"

	"github.com/millrace-io/millrace/shared/event"
)

const (
	// Default is the number of partitions where the installation says nothing.
	// Unit: partitions. Source: docs/adr/0003-partitions.md.
	Default = 32
	// Max is the largest number of partitions. Unit: partitions. Source: one
	// durable per role and partition, on a server that advises at most about
	// 2 000 replicated assets.
	Max = 256

	fnvOffset = 2166136261
	fnvPrime  = 16777619
)

// OfKey returns pk: the partition of an object by its whole key, in [0, count).
func OfKey(key event.Key, count int) int { return of(key.String(), count) }

// OfNamespace returns pn: the partition of an object by its namespace, in
// [0, count). All cluster-scoped objects share one.
func OfNamespace(key event.Key, count int) int { return of(key.Namespace, count) }

// of is FNV-1a, 32 bits, modulo count. It is part of the wire format: releases
// that run side by side must agree, and TestOfIsFrozen holds it still. The high
// bits of FNV are poor, the low ones that modulo looks at are good.
func of(s string, count int) int {
	h := uint32(fnvOffset)
	for i := range len(s) {
		h = (h ^ uint32(s[i])) * fnvPrime
	}
	return int(h % uint32(count)) //nolint:gosec // count is in 1..Max
}

// Assign gives every unit, 0 to units-1, to one of members by rendezvous
// hashing with bounded load: no member gets more than ceil(units/members). salt
// keeps different roles from preferring the same member. The order of members
// does not matter; the result is the same wherever it is computed. With no
// members every unit is "".
func Assign(salt string, members []string, units int) []string {
	winners := make([]string, units)
	if len(members) == 0 {
		return winners
	}
	limit := Cap(units, len(members))
	load := make(map[string]int, len(members))
	for unit := range units {
		for _, m := range ranked(salt, members, unit) {
			if load[m] < limit {
				winners[unit] = m
				load[m]++
				break
			}
		}
	}
	return winners
}

// Cap is the most units that one of n members is to hold.
func Cap(units, n int) int { return (units + n - 1) / n }

// ranked orders members by their weight for unit, heaviest first.
func ranked(salt string, members []string, unit int) []string {
	out := slices.Clone(members)
	slices.SortFunc(out, func(a, b string) int {
		if c := cmp.Compare(weight(salt, b, unit), weight(salt, a, unit)); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	return out
}

func weight(salt, member string, unit int) uint64 {
	h := uint64(14695981039346656037)
	for _, s := range [...]string{salt, member} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		h *= 1099511628211
	}
	h ^= uint64(unit) * 0x9e3779b97f4a7c15 //nolint:gosec // unit is in 0..Max
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
