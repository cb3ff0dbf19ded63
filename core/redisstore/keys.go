package redisstore

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseKeys are the Redis keys of the leases of a key, in one slot of a Cluster: those of
// scripts/lib/lease.lua.
type leaseKeys [5]string

// The part of a key between the prefix and the tag.
const (
	ofLeases  = ":e:{"
	ofLatches = ":c:{"
)

func (s *Store) leaseKeys(name, key string) leaseKeys {
	tag := s.hash(name, key)
	var room [256]byte
	text := append(append(append(room[:0], s.config.prefix...), ofLeases...), tag[:]...)
	return leaseKeysOf(append(append(text, "}:"...), name...))
}

// leaseKeysOf returns the keys of a record, whose own has its name, by which a listing finds it. They
// are parts of one string, which saves allocations.
func leaseKeysOf(record []byte) (keys leaseKeys) {
	stem, _, _ := bytes.Cut(record, []byte("}"))
	var room [512]byte
	text := append(room[:0], record...)
	for _, end := range []string{"}o", "}i", "}p", "}x"} {
		text = append(append(text, stem...), end...)
	}
	all, size := string(text), len(record)
	for i := range keys {
		keys[i], all = all[:size], all[size:]
		size = len(stem) + len("}o")
	}
	return keys
}

// linger returns for how many ms the record of a name is kept without holds and waiters. That of a
// lock has the largest fence, and must outlive the holder that it is compared with.
func linger(name string) int64 {
	if strings.HasPrefix(name, store.SemaphoreKind) {
		return 0
	}
	return recordLife.Milliseconds()
}

// withName returns a pattern of the records with a name.
func (s *Store) withName(of, name string) (pattern string) {
	return glob.Replace(s.config.prefix) + of + "*}:" + glob.Replace(name)
}

// tagOf returns the tag in a Redis key that ends in a name. It checks the name, since the pattern
// of a name also matches longer names with the same end.
func (s *Store) tagOf(key, of, name string) (tag string, ok bool) {
	rest, ok := strings.CutPrefix(key, s.config.prefix+of)
	if !ok {
		return "", false
	}
	tag, rest, ok = strings.Cut(rest, "}")
	return tag, ok && rest == ":"+name
}

// bucketTag is the common start of the Redis keys of a key's buckets: a hash tag, and so a slot of
// a Cluster.
type bucketTag struct {
	text [64 + len(":t:{") + tagSize + len("}")]byte
	size int
}

func (s *Store) tagged(limiter, key string) bucketTag {
	var t bucketTag
	tag := s.hash(limiter, key)
	text := append(append(append(append(t.text[:0], s.config.prefix...), ":t:{"...), tag[:]...), '}')
	t.size = len(text)
	return t
}

// key returns the Redis key of a bucket.
func (t *bucketTag) key(bucket string) string {
	if bucket == "" {
		return string(t.text[:t.size])
	}
	return string(t.text[:t.size]) + ":" + bucket
}

// appendBucketKeys appends the Redis keys of the buckets of charges.
func (s *Store) appendBucketKeys(keys []string, limiter, key string, charges []store.Charge) []string {
	tag := s.tagged(limiter, key)
	for i := range charges {
		keys = append(keys, tag.key(charges[i].Bucket))
	}
	return keys
}

// tag returns the hash of a mechanism's name and a key.
func (s *Store) tag(name, key string) string {
	tag := s.hash(name, key)
	return string(tag[:])
}

const tagSize = 22

func (s *Store) hash(name, key string) (tag [tagSize]byte) {
	var room [512]byte // most fit, and need no allocation
	text := binary.BigEndian.AppendUint64(room[:0], uint64(len(name)))
	text = append(append(text, name...), key...)
	sum := sha256.Sum256(text)
	if len(s.config.secret) > 0 {
		h := hmac.New(sha256.New, s.config.secret)
		h.Write([]byte(string(text))) // a copy, so that the array above stays on the stack
		copy(sum[:], h.Sum(nil))
	}
	base64.RawURLEncoding.Encode(tag[:], sum[:16])
	return tag
}
