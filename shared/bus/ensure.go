package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// oldestServer is the first server with everything the bus uses. Source: the
// consumer reset of 2.14 (ADR-60); the rest is older.
var oldestServer = [2]int{2, 14}

// Ensure creates what is missing of the streams and buckets, and mends what
// differs from their declaration. It needs the bootstrap identity, may run at
// any time and in several processes, and refuses like Verify what it must not
// mend.
func (b *Bus) Ensure(ctx context.Context) error {
	if err := b.verifyServer(); err != nil {
		return err
	}
	for _, want := range b.assets() {
		if err := b.ensureStream(ctx, want, 0); err != nil {
			return fmt.Errorf("ensuring stream %s: %w", want.Name, err)
		}
	}
	return nil
}

// Verify compares what exists with what this build needs and changes nothing:
// ErrDisconnected, ErrServerTooOld, ErrMissing, ErrWireVersion, ErrPartitions.
func (b *Bus) Verify(ctx context.Context) error {
	if err := b.verifyServer(); err != nil {
		return err
	}
	for _, want := range b.assets() {
		info, err := b.streamInfo(ctx, want.Name)
		if err == nil {
			err = b.verifyMetadata(info.Config.Metadata)
		}
		if err != nil {
			return fmt.Errorf("verifying stream %s: %w", want.Name, err)
		}
	}
	return nil
}

// Reset deletes and recreates every stream and bucket, whatever they hold and
// whatever they were made for. Sequences go on above the old ones.
func (b *Bus) Reset(ctx context.Context) error {
	if err := b.verifyServer(); err != nil {
		return err
	}
	for _, want := range b.assets() {
		last, err := b.deleteStream(ctx, want.Name)
		if err == nil {
			err = b.ensureStream(ctx, want, last)
		}
		if err != nil {
			return fmt.Errorf("resetting stream %s: %w", want.Name, err)
		}
	}
	return nil
}

func (b *Bus) deleteStream(ctx context.Context, name string) (last uint64, err error) {
	info, err := b.streamInfo(ctx, name)
	if errors.Is(err, ErrMissing) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	err = b.api(ctx, "STREAM.DELETE."+name, nil, nil)
	if errors.Is(err, ErrMissing) {
		err = nil
	}
	return info.State.LastSeq, err
}

// ensureStream creates or mends one stream; a new one starts above last.
func (b *Bus) ensureStream(ctx context.Context, want jetstream.StreamConfig, last uint64) error {
	info, err := b.streamInfo(ctx, want.Name)
	if errors.Is(err, ErrMissing) {
		return b.createStream(ctx, want, last)
	}
	if err != nil {
		return err
	}
	if err := b.verifyMetadata(info.Config.Metadata); err != nil {
		return err
	}
	return b.mendStream(ctx, info.Config, want)
}

func (b *Bus) createStream(ctx context.Context, want jetstream.StreamConfig, last uint64) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	// ⚠ Microseconds since 1970: above every sequence of a stream that was here
	// before, as long as it took less than a million messages a second.
	want.FirstSeq = max(uint64(time.Now().UnixMicro()), last+1) //nolint:gosec // after 1970
	want.Replicas = b.replicas()
	_, err := b.js.CreateStream(ctx, want)
	if b.cfg.Replicas == 0 && want.Replicas > 1 && tooFewServers(err) {
		want.Replicas = 1
		_, err = b.js.CreateStream(ctx, want)
	}
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return nil // another process was first; the next round compares
	}
	if err == nil {
		b.log.Info("created stream", "stream", want.Name, "first", want.FirstSeq, "replicas", want.Replicas)
	}
	return sorted(err)
}

// mendStream writes the declared settings over differing ones. Storage cannot
// be changed, and FirstSeq says nothing once a stream exists.
func (b *Bus) mendStream(ctx context.Context, have, want jetstream.StreamConfig) error {
	next, differs := mended(have, want, b.cfg.Replicas)
	if have.Storage != want.Storage {
		b.log.Debug("stream keeps its storage", "stream", have.Name, "storage", have.Storage.String())
	}
	if !differs {
		return nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if _, err := b.js.UpdateStream(ctx, next); err != nil {
		return sorted(err)
	}
	b.log.Info("mended stream", "stream", have.Name)
	return nil
}

// mended returns have with the declared settings, and whether that is a change.
// Everything we do not declare (placement, sources, other metadata) stays.
func mended(have, want jetstream.StreamConfig, replicas int) (jetstream.StreamConfig, bool) {
	next := have
	next.Description = want.Description
	next.Subjects = want.Subjects
	next.Discard = want.Discard
	next.DiscardNewPerSubject = false
	next.MaxMsgs = want.MaxMsgs
	next.MaxBytes = want.MaxBytes
	next.MaxAge = want.MaxAge
	next.MaxMsgSize = want.MaxMsgSize
	next.MaxMsgsPerSubject = want.MaxMsgsPerSubject
	next.MaxConsumers = want.MaxConsumers
	next.Duplicates = want.Duplicates
	next.AllowDirect = want.AllowDirect
	next.AllowRollup = want.AllowRollup
	next.DenyPurge = want.DenyPurge
	next.AllowMsgTTL = want.AllowMsgTTL || have.AllowMsgTTL // cannot be taken back
	next.DenyDelete = want.DenyDelete || have.DenyDelete    // cannot be taken back
	next.SubjectDeleteMarkerTTL = want.SubjectDeleteMarkerTTL
	if have.Storage == jetstream.FileStorage {
		next.Compression = want.Compression
	}
	if replicas != 0 {
		next.Replicas = replicas
	}
	next.Metadata = maps.Clone(have.Metadata)
	if next.Metadata == nil {
		next.Metadata = map[string]string{}
	}
	maps.Copy(next.Metadata, want.Metadata)
	return next, !sameStream(have, next)
}

// sameStream compares what mended may set; the rest was copied.
func sameStream(a, b jetstream.StreamConfig) bool {
	return strings.Join(a.Subjects, " ") == strings.Join(b.Subjects, " ") &&
		maps.Equal(a.Metadata, b.Metadata) && settingsOf(a) == settingsOf(b)
}

// settings are those of a stream that can be compared as one value.
type settings struct {
	description                      string
	discard                          jetstream.DiscardPolicy
	compression                      jetstream.StoreCompression
	maxMsgs, maxBytes, maxPerSubject int64
	maxMsgSize                       int32
	maxConsumers, replicas           int
	maxAge, duplicates, markerTTL    time.Duration
	perSubject, direct, rollup, ttl  bool
	denyPurge, denyDelete            bool
}

func settingsOf(c jetstream.StreamConfig) settings {
	return settings{
		description: c.Description, discard: c.Discard, compression: c.Compression,
		maxMsgs: c.MaxMsgs, maxBytes: c.MaxBytes, maxPerSubject: c.MaxMsgsPerSubject, maxMsgSize: c.MaxMsgSize,
		maxConsumers: c.MaxConsumers, replicas: c.Replicas,
		maxAge: c.MaxAge, duplicates: c.Duplicates, markerTTL: c.SubjectDeleteMarkerTTL,
		perSubject: c.DiscardNewPerSubject, direct: c.AllowDirect, rollup: c.AllowRollup, ttl: c.AllowMsgTTL,
		denyPurge: c.DenyPurge, denyDelete: c.DenyDelete,
	}
}

// replicas is how many servers a new stream is to be kept on.
func (b *Bus) replicas() int {
	switch {
	case b.cfg.Replicas != 0:
		return b.cfg.Replicas
	case b.nc.ConnectedClusterName() != "":
		return 3
	default:
		return 1
	}
}

// tooFewServers reports whether the cluster has fewer servers than replicas.
func tooFewServers(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == codeNoPeers || api.ErrorCode == codeReplicasRefused)
}

// verifyMetadata says whether streams made with these words are for us.
func (b *Bus) verifyMetadata(meta map[string]string) error {
	wire, err := strconv.Atoi(meta[metaWire])
	if err != nil || wire < oldestWire || wire > WireVersion {
		return fmt.Errorf("%w: the stream has %q, this build reads %d to %d", ErrWireVersion, meta[metaWire], oldestWire, WireVersion)
	}
	if meta[metaPartitions] != strconv.Itoa(b.cfg.Partitions) {
		return fmt.Errorf("%w: the stream was made for %q, %sPARTITIONS is %d; `millrace bus reset` rebuilds the bus from the API server",
			ErrPartitions, meta[metaPartitions], settingPrefix, b.cfg.Partitions)
	}
	return nil
}

func (b *Bus) verifyServer() error {
	if !b.nc.IsConnected() {
		return ErrDisconnected
	}
	return verifyVersion(b.nc.ConnectedServerVersion())
}

// verifyVersion refuses servers before oldestServer. A version is like 2.15.2 or
// 2.15.0-dev.
func verifyVersion(version string) error {
	var have [2]int
	parts := strings.SplitN(version, ".", 3)
	for i := range have {
		if i >= len(parts) {
			break
		}
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return fmt.Errorf("%w: its version is %q, %d.%d is needed", ErrServerTooOld, version, oldestServer[0], oldestServer[1])
		}
		have[i] = n
	}
	if have[0] < oldestServer[0] || have[0] == oldestServer[0] && have[1] < oldestServer[1] {
		return fmt.Errorf("%w: its version is %q, %d.%d is needed", ErrServerTooOld, version, oldestServer[0], oldestServer[1])
	}
	return nil
}

func (b *Bus) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	var info jetstream.StreamInfo
	if err := b.api(ctx, "STREAM.INFO."+name, nil, &info); err != nil {
		return nil, err
	}
	return &info, nil
}
