package guard

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
)

// The data of a result and of a step has one layout in the store:
//
//	flags   a byte: traced, deflated, sealed
//	trace   if traced: the trace and the span of the attempt, so that a replay can link to them
//	size    if deflated: that of the data, a varint
//	key     if sealed: the length of the key's ID, a byte, and the ID
//	body    the data; deflated if that makes it smaller; if sealed, the nonce and the tag are round it
//
// Everything before a sealed body, and the place of the data, are authenticated with it.
const (
	traced byte = 1 << iota
	deflated
	sealed

	traceBytes = len(trace.TraceID{}) + len(trace.SpanID{})
	maxKeyID   = 64
	sealBytes  = 12 + 16 // nonce and tag
)

var (
	errDamaged  = errors.New("guard: the record is damaged")
	errUnsealed = errors.New("guard: the record is not sealed")
)

// SealKey is a key of [WithSeal].
type SealKey struct {
	// ID names the key in the records that it seals, where readers of the store see it: 1 to 64 bytes.
	// It is never given to another key.
	ID string
	// Key has 16, 24 or 32 random bytes, for AES-128, AES-192 or AES-256.
	Key []byte

	unsealed bool
}

// Unsealed stands for no key in the list of [WithSeal]: it seals nothing, and opens data without a
// seal.
func Unsealed() SealKey { return SealKey{unsealed: true} }

// sealer encodes and decodes the data of results and steps.
type sealer struct {
	keys  map[string]cipher.AEAD
	first string // the ID of the key that seals; empty to seal nothing
	plain bool   // opens data that is not sealed

	deflaters deflaters
}

// newSealer returns a sealer with these keys, or an error that describes the wrong one.
func newSealer(keys []SealKey) (*sealer, error) {
	s := &sealer{keys: make(map[string]cipher.AEAD)}
	if len(keys) == 0 {
		return nil, errors.New("no key")
	}
	for _, key := range keys {
		switch {
		case key.unsealed && s.plain:
			return nil, errors.New("Unsealed is given twice")
		case key.unsealed:
			s.plain = true
			continue
		case key.ID == "" || len(key.ID) > maxKeyID:
			return nil, fmt.Errorf("the ID of a key has %d bytes, not 1 to %d", len(key.ID), maxKeyID)
		case s.keys[key.ID] != nil:
			return nil, fmt.Errorf("two keys have the ID %q", key.ID)
		}
		block, err := aes.NewCipher(key.Key)
		if err != nil {
			return nil, fmt.Errorf("the key %q has %d bytes, not 16, 24 or 32", key.ID, len(key.Key))
		}
		if s.keys[key.ID], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
	}
	s.first = keys[0].ID
	return s, nil
}

// place is the place of data in the store. Sealed data opens nowhere else.
type place struct {
	ref    store.OperationRef
	status int    // of the result
	step   string // the name of the step; empty for the result
}

// authenticated returns the data that a seal behind this head authenticates.
func (p place) authenticated(head []byte) []byte {
	var most [256]byte
	b := most[:0]
	if p.step != "" {
		b = textlist.Append(b, "step", idOf(p.ref), p.step)
	} else {
		b = textlist.Append(b, "result", idOf(p.ref), strconv.Itoa(p.status))
	}
	return append(b, head...)
}

// seal returns the stored form of data, with the span of the attempt if it is sampled.
func (s *sealer) seal(p place, span trace.SpanContext, data []byte) []byte {
	kept := make([]byte, 0, 1+traceBytes+binary.MaxVarintLen64+1+len(s.first)+sealBytes+len(data))
	kept = s.appendHead(kept, span, len(data))
	head := len(kept)
	kept, smaller := s.deflaters.deflate(kept, data)
	if !smaller {
		kept = s.appendHead(kept[:0], span, -1)
		head = len(kept)
		kept = append(kept, data...)
	}
	if s.first != "" {
		kept = s.keys[s.first].Seal(kept[:head], nil, kept[head:], p.authenticated(kept[:head]))
	}
	if smaller { // a copy, to free the rest
		kept = bytes.Clone(kept)
	}
	return kept
}

// appendHead appends the part before the body. A negative size means that the data is not deflated.
func (s *sealer) appendHead(b []byte, span trace.SpanContext, size int) []byte {
	b = append(b, 0)
	if span.IsValid() && span.IsSampled() {
		b[0] |= traced
		traceID, spanID := span.TraceID(), span.SpanID()
		b = append(append(b, traceID[:]...), spanID[:]...)
	}
	if size >= 0 {
		b[0] |= deflated
		b = binary.AppendUvarint(b, uint64(size))
	}
	if s.first != "" {
		b[0] |= sealed
		b = append(append(b, byte(len(s.first))), s.first...)
	}
	return b
}

// open is the reverse of seal. It refuses data of more than limit bytes, and allocates no more than
// that.
func (s *sealer) open(p place, b []byte, limit int) (origin trace.SpanContext, data []byte, err error) {
	if len(b) == 0 || b[0] >= sealed<<1 {
		return origin, nil, errDamaged
	}
	flags, rest := b[0], b[1:]
	if flags&traced != 0 {
		if len(rest) < traceBytes {
			return origin, nil, errDamaged
		}
		config := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled, Remote: true}
		rest = rest[copy(config.TraceID[:], rest):]
		rest = rest[copy(config.SpanID[:], rest):]
		origin = trace.NewSpanContext(config)
	}
	size := -1
	if flags&deflated != 0 {
		v, n := binary.Uvarint(rest)
		if n <= 0 {
			return origin, nil, errDamaged
		}
		rest, size = rest[n:], int(min(v, uint64(limit)+1))
	}
	switch {
	case flags&sealed != 0:
		if rest, err = s.unseal(p, b, rest); err != nil {
			return trace.SpanContext{}, nil, err
		}
	case !s.plain:
		return trace.SpanContext{}, nil, errUnsealed
	}
	if max(size, len(rest)) > limit {
		return trace.SpanContext{}, nil, fmt.Errorf("guard: the record has more than %d bytes of data", limit)
	}
	if size >= 0 {
		if rest, err = s.deflaters.inflate(rest, size); err != nil {
			return trace.SpanContext{}, nil, err
		}
	}
	return origin, rest, nil
}

// unseal opens the sealed end of b, which begins with the ID of its key.
func (s *sealer) unseal(p place, b, end []byte) ([]byte, error) {
	if len(end) == 0 || len(end) <= int(end[0]) {
		return nil, errDamaged
	}
	id, body := end[1:1+end[0]], end[1+end[0]:]
	key := s.keys[string(id)]
	if key == nil {
		return nil, fmt.Errorf("guard: the record is sealed with the key %q, which the guard does not have", id[:min(len(id), maxKeyID)])
	}
	data, err := key.Open(nil, nil, body, p.authenticated(b[:len(b)-len(body)]))
	if err != nil {
		return nil, fmt.Errorf("guard: the record was sealed otherwise, or for another operation, with the key %q: %w", id, err)
	}
	return data, nil
}

// identity returns a text for people, and one with the keys themselves, that only sealers with the
// same keys have in common.
func identity(keys []SealKey) (text, secret string) {
	ids := make([]string, len(keys))
	var all []byte
	for i, key := range keys {
		ids[i] = strconv.Quote(key.ID)
		if key.unsealed {
			ids[i] = "unsealed"
		}
		all = textlist.Append(all, ids[i], string(key.Key))
	}
	return fmt.Sprint(ids), string(all)
}

func clone(keys []SealKey) []SealKey {
	keys = append([]SealKey{}, keys...) // not nil: New refuses a list without keys
	for i := range keys {
		keys[i].Key = slices.Clone(keys[i].Key)
	}
	return keys
}
