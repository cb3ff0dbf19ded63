package pgstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"time"
)

// digest returns the digest that stands for a list of texts in the database. No other list of texts
// has the same encoding.
func (s *Store) digest(texts ...string) [16]byte {
	var room [256]byte
	b := room[:0]
	for _, text := range texts {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	if len(s.config.secret) == 0 {
		sum := sha256.Sum256(b)
		return [16]byte(sum[:])
	}
	mac := hmac.New(sha256.New, s.config.secret)
	mac.Write(b)
	return [16]byte(mac.Sum(room[:0]))
}

// leaseKey is the digest of a lease's name and key.
type leaseKey [16]byte

func (s *Store) leaseKey(name, key string) leaseKey { return s.digest(name, key) }

// Name implements waiting.Record: it is the text of a uuid.
func (k leaseKey) Name() string {
	var text [36]byte
	at := 0
	for i, size := range [...]int{4, 2, 2, 2, 6} {
		if i > 0 {
			text[at] = '-'
			at++
		}
		at += hex.Encode(text[at:], k[:size])
		copy(k[:], k[size:])
	}
	return string(text[:])
}

// shown returns a key as the database keeps it for listings: nothing if keys are secret.
func (s *Store) shown(key string) []byte {
	if len(s.config.secret) > 0 {
		return nil
	}
	return []byte(key)
}

// micros returns a time of the database.
func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
