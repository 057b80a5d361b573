package fleet

import (
	"context"
	"encoding/json"
	"fmt"
)

// Status is what `millrace status -o json` prints, as far as anybody here reads
// it.
type Status struct {
	Cluster    string `json:"cluster"`
	Partitions int    `json:"partitions"`
	Bus        string `json:"bus"`
	Roles      []struct {
		Role    string `json:"role"`
		Held    int    `json:"held"`
		Units   int    `json:"units"`
		Members []struct {
			ID       string   `json:"id"`
			Host     string   `json:"host"`
			NotReady []string `json:"notReady"`
			Units    []Unit   `json:"units"`
		} `json:"members"`
	} `json:"roles"`
	Kinds []struct {
		Kind    string `json:"kind"`
		Role    string `json:"role"`
		Objects uint64 `json:"objects"`
		Synced  bool   `json:"synced"`
		Problem string `json:"problem"`
	} `json:"kinds"`
	Paused      []string `json:"paused"`
	DeadLetters []struct {
		Role, Kind, Key, Reason string
	} `json:"deadLetters"`
}

// Unit is one partition, or one kind, in the hands of a member.
type Unit struct {
	Unit    string `json:"unit"`
	Epoch   uint64 `json:"epoch"`
	Synced  bool   `json:"synced"`
	Objects uint64 `json:"objects"`
	Queued  uint64 `json:"queued"`
	// OldestSeconds is how long the key has waited that waits longest.
	OldestSeconds float64 `json:"oldestSeconds"`
	Reconciles    uint64  `json:"reconciles"`
}

// Units are those of all members.
func (s Status) Units() (units []Unit) {
	for _, r := range s.Roles {
		for _, m := range r.Members {
			units = append(units, m.Units...)
		}
	}
	return units
}

// Status asks the installation.
func (f *Fleet) Status(ctx context.Context) (s Status, err error) {
	out, err := f.Run(ctx, "status", "-o", "json")
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		return s, fmt.Errorf("reading the status: %w", err)
	}
	return s, nil
}

// Objects is how many objects of a kind the members of a role know.
func (s Status) Objects(role, kind string) (n uint64, ok bool) {
	for _, k := range s.Kinds {
		if k.Role == role && k.Kind == kind {
			return k.Objects, k.Synced
		}
	}
	return 0, false
}

// Holders says which host holds each unit of a role.
func (s Status) Holders(role string) map[string]string {
	out := make(map[string]string)
	for _, r := range s.Roles {
		if r.Role != role {
			continue
		}
		for _, m := range r.Members {
			for _, u := range m.Units {
				out[u.Unit] = m.Host
			}
		}
	}
	return out
}
