package beat

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// Encoder turns digests into messages. It keeps its memory from one to the next,
// so it has one owner, as Ages has.
type Encoder struct {
	message millracev1.Digest
	uids    []byte
}

// Encode returns the digest as it travels. The bytes are the caller's.
func (e *Encoder) Encode(d Digest) ([]byte, error) {
	m := &e.message
	m.Epoch, m.Counter, m.ClockMicros = d.Epoch, d.Counter, d.At.Microseconds()
	m.Nodes, m.Uids, e.uids = m.GetNodes()[:0], m.GetUids()[:0], e.uids[:0]
	m.Renewed, m.Heartbeats, m.Ages = m.GetRenewed()[:0], m.GetHeartbeats()[:0], m.GetAges()[:0]
	var before Beat
	for i := range d.Beats {
		b := &d.Beats[i]
		m.Nodes = append(m.Nodes, b.Node)
		from := len(e.uids)
		e.uids = appendUID(e.uids, b.UID)
		m.Uids = append(m.Uids, e.uids[from:len(e.uids):len(e.uids)])
		m.Renewed = append(m.Renewed, b.Renewed-before.Renewed)
		m.Heartbeats = append(m.Heartbeats, b.Heartbeat-before.Heartbeat)
		m.Ages = append(m.Ages, uint32(min(max(b.Age.Milliseconds(), 0), math.MaxUint32))) //nolint:gosec // it fits
		before = *b
	}
	body, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encoding digest: %w", err)
	}
	return body, nil
}

// Decode reads what Encode made.
func Decode(body []byte) (Digest, error) {
	var m millracev1.Digest
	if err := proto.Unmarshal(body, &m); err != nil {
		return Digest{}, fmt.Errorf("decoding digest: %w", err)
	}
	n := len(m.GetNodes())
	if len(m.GetUids()) != n || len(m.GetRenewed()) != n || len(m.GetHeartbeats()) != n || len(m.GetAges()) != n {
		return Digest{}, errors.New("decoding digest: its columns differ in length")
	}
	d := Digest{Epoch: m.GetEpoch(), Counter: m.GetCounter(), At: time.Duration(m.GetClockMicros()) * time.Microsecond, Beats: make([]Beat, n)}
	var before Beat
	for i := range d.Beats {
		d.Beats[i] = Beat{
			Node: m.GetNodes()[i], UID: uidOf(m.GetUids()[i]),
			Renewed: before.Renewed + m.GetRenewed()[i], Heartbeat: before.Heartbeat + m.GetHeartbeats()[i],
			Age: time.Duration(m.GetAges()[i]) * time.Millisecond,
		}
		if i > 0 && d.Beats[i].Node <= before.Node {
			return Digest{}, fmt.Errorf("decoding digest: node %q is not behind %q", d.Beats[i].Node, before.Node)
		}
		before = d.Beats[i]
	}
	return d, nil
}

// uuidBytes is the length of a UUID, and where its text has dashes.
const uuidBytes = 16

var uuidDashes = [...]int{8, 13, 18, 23}

// appendUID appends a UID as it travels: a UUID as its 16 bytes, any other text
// behind zero bytes, which no text has, and never 16 bytes long.
func appendUID(to []byte, uid string) []byte {
	if raw, ok := uuid(uid); ok {
		return append(to, raw[:]...)
	}
	to = append(to, 0)
	if len(uid)+1 == uuidBytes {
		to = append(to, 0)
	}
	return append(to, uid...)
}

func uidOf(b []byte) string {
	if len(b) != uuidBytes {
		return strings.TrimLeft(string(b), "\x00")
	}
	var text [36]byte
	hex.Encode(text[:8], b[:4])
	hex.Encode(text[9:13], b[4:6])
	hex.Encode(text[14:18], b[6:8])
	hex.Encode(text[19:23], b[8:10])
	hex.Encode(text[24:], b[10:])
	for _, i := range uuidDashes {
		text[i] = '-'
	}
	return string(text[:])
}

// uuid reads the text that uidOf would write; false for any other.
func uuid(text string) (raw [uuidBytes]byte, ok bool) {
	if len(text) != 36 {
		return raw, false
	}
	var digits [32]byte
	n := 0
	for i := range len(text) {
		c := text[i]
		if i == uuidDashes[0] || i == uuidDashes[1] || i == uuidDashes[2] || i == uuidDashes[3] {
			if c != '-' {
				return raw, false
			}
			continue
		}
		if 'A' <= c && c <= 'F' {
			return raw, false
		}
		digits[n] = c
		n++
	}
	_, err := hex.Decode(raw[:], digits[:])
	return raw, err == nil
}
