package etcdstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
)

// The keys of a store, after its prefix:
//
//	l/NAME/KEY/ID  an entry: a request for a lease, which waits or holds
//	x/KEY/ID       a tombstone: the ID was released while its request was in flight
//	i/PROCESS/ID   the inbox of a process: a hold that another process has revoked
//	c/NAME         a latch, and c/NAME/PARTICIPANT its participants
//	d/SPACE/NAME   a document
//	fence          the base of fences
//
// Names, keys, participants and spaces are digests, since they may have any bytes.

// digest returns the digest that stands for a list of texts. No other list of texts has the same
// encoding.
func (s *Store) digest(texts ...string) string {
	var room [256]byte
	b := room[:0]
	for _, text := range texts {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	var sum []byte
	if len(s.config.secret) == 0 {
		plain := sha256.Sum256(b)
		sum = plain[:]
	} else {
		mac := hmac.New(sha256.New, s.config.secret)
		mac.Write(b)
		sum = mac.Sum(nil)
	}
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// names returns the prefix of all entries of a name.
func (s *Store) names(name string) string { return s.config.prefix + "l/" + s.digest(name) + "/" }

// path returns the prefix of the entries of a key.
func (s *Store) path(name, key string) string { return s.names(name) + s.digest(name, key) + "/" }

// tombstone returns the key of the tombstone of a request, from the prefix of the entries of its key.
func (s *Store) tombstone(path, id string) string {
	return s.config.prefix + "x/" + keyOf(path) + "/" + id
}

// keyOf returns the digest of a key from the prefix of its entries.
func keyOf(path string) string {
	const size = 22 // of a digest
	return path[len(path)-1-size : len(path)-1]
}

func (s *Store) inboxOf(process string) string { return s.config.prefix + "i/" + process + "/" }

func (s *Store) latchKey(name string) string { return s.config.prefix + "c/" + s.digest("latch", name) }

func (s *Store) fenceKey() string { return s.config.prefix + "fence" }
