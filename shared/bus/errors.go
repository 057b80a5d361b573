package bus

import (
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/shared/event"
)

var (
	// ErrRefused means that the subject's last sequence, or the key's revision,
	// was not the expected one. Nothing was written.
	ErrRefused = event.ErrRefused
	// ErrTooLarge means that the message exceeds the stream's or the server's
	// limit and never fits. Nothing was written.
	ErrTooLarge = errors.New("message is too large")
	// ErrFull means that the stream or the server has no room. Nothing was
	// written.
	ErrFull = errors.New("stream is full")
	// ErrNone means that the subject or key holds nothing, or a delete marker.
	ErrNone = event.ErrNone
	// ErrDisconnected means that the server is away. For a write in flight the
	// outcome is unknown.
	ErrDisconnected = errors.New("not connected to NATS")
	// ErrTimeout means that no answer came in time; the outcome is unknown.
	ErrTimeout = errors.New("no answer in time")
	// ErrClosed means that the bus was closed; the outcome is unknown.
	ErrClosed = errors.New("bus is closed")
	// ErrNoResponders means that the server knows of nobody who listens.
	ErrNoResponders = event.ErrNoResponders

	// ErrServerTooOld means that the server lacks what the bus needs.
	ErrServerTooOld = errors.New("NATS server is too old")
	// ErrWireVersion means that the streams speak a version this build does not.
	ErrWireVersion = errors.New("wire version does not match")
	// ErrPartitions means that the streams were made for another number of
	// partitions.
	ErrPartitions = errors.New("number of partitions does not match")
	// ErrMissing means that a stream or bucket does not exist (yet).
	ErrMissing = errors.New("stream is missing")
	// ErrGap means that a reader lost its place and must start anew.
	ErrGap = errors.New("flow was broken")
)

// Error codes of the server that nats.go does not name. Source: nats-server
// v2.15, server/jetstream_errors_generated.go.
const (
	codeNoPeers          jetstream.ErrorCode = 10005
	codeInsufficient     jetstream.ErrorCode = 10023
	codeMemoryExceeded   jetstream.ErrorCode = 10028
	codeStorageExceeded  jetstream.ErrorCode = 10047
	codeReplicasRefused  jetstream.ErrorCode = 10074
	codeStoreFailed      jetstream.ErrorCode = 10077
	codeMessageTooLarge                      = jetstream.JSErrCodeStreamMessageExceedsMaximum
	codeWrongLast                            = jetstream.JSErrCodeStreamWrongLastSequence
	codeWrongLastOnPeers                     = jetstream.JSErrCodeStreamWrongLastSequenceConstant
)

// sorted gives the errors of nats.go and of the server the names of this room.
func sorted(err error) error {
	if err == nil {
		return nil
	}
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return sortedCode(api)
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return fmt.Errorf("%w: %w", ErrNoResponders, err)
	case errors.Is(err, nats.ErrReconnectBufExceeded), errors.Is(err, nats.ErrDisconnected),
		errors.Is(err, nats.ErrConnectionReconnecting),
		errors.Is(err, nats.ErrHeadersNotSupported): // said before the first connection
		return fmt.Errorf("%w: %w", ErrDisconnected, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return fmt.Errorf("%w: %w", ErrClosed, err)
	case errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	default:
		return err
	}
}

func sortedCode(api *jetstream.APIError) error {
	switch api.ErrorCode {
	case codeWrongLast, codeWrongLastOnPeers:
		return fmt.Errorf("%w: %w", ErrRefused, api)
	case codeMessageTooLarge:
		return fmt.Errorf("%w: %w", ErrTooLarge, api)
	case codeStoreFailed, codeInsufficient, codeMemoryExceeded, codeStorageExceeded:
		return fmt.Errorf("%w: %w", ErrFull, api)
	case jetstream.JSErrCodeMessageNotFound:
		return fmt.Errorf("%w: %w", ErrNone, api)
	case jetstream.JSErrCodeStreamNotFound:
		return fmt.Errorf("%w: %w", ErrMissing, api)
	default:
		return api
	}
}
