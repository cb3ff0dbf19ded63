package redisstore

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// lockKeys are the Redis keys of a lock and of a request for it, in one slot of a Cluster: the
// record, the holds, the queue and its heartbeats, of which scripts/queue.lua has the layouts; a
// lone hold, which replaces all of them (scripts/lock.lua); the ID's tombstone; and the largest
// fence.
type lockKeys [7]string

// shared returns the keys of every lock script.
func (k *lockKeys) shared() []string { return k[:5] }

// withID returns the keys of scripts that may end the request or hold of the ID.
func (k *lockKeys) withID() []string { return k[:6] }

func (k *lockKeys) fence() string { return k[6] }

// The part of a key between the prefix and the tag.
const (
	ofLocks      = ":l:{"
	ofSemaphores = ":s:{"
	ofLatches    = ":c:{"
)

func (s *Store) lockKeys(name, key, id string) lockKeys {
	tag := s.hash(name, key)
	return s.lockKeysOf(name, tag[:], id)
}

// lockKeysOf returns the Redis keys of the lock with a tag.
func (s *Store) lockKeysOf(name string, tag []byte, id string) (keys lockKeys) {
	s.queueKeys(keys[:], ofLocks, tag, []ending{{":", name}, {"h"}, {"q"}, {"w"}, {"=", name}, {"x:", id}, {"f"}})
	return keys
}

// permitKeys returns the Redis keys of a semaphore and of a request for a permit: those of a lock
// without a lone hold, and with the heavy permits instead of a fence.
func (s *Store) permitKeys(name, key, id string) []string {
	tag := s.hash(name, key)
	return s.permitKeysOf(name, tag[:], id)
}

func (s *Store) permitKeysOf(name string, tag []byte, id string) []string {
	keys := make([]string, 6)
	s.queueKeys(keys, ofSemaphores, tag, []ending{{":", name}, {"h"}, {"q"}, {"w"}, {"x:", id}, {"v"}})
	return keys
}

// ending is the end of a Redis key. That of a record, and of a lone hold, has the name, by which a
// listing finds them.
type ending [2]string

// queueKeys sets one key for each ending. They are substrings of one string, which saves
// allocations.
func (s *Store) queueKeys(keys []string, of string, tag []byte, endings []ending) {
	stem := len(s.config.prefix) + len(of) + len(tag) + len("}")
	size := len(endings) * stem
	for _, end := range endings {
		size += len(end[0]) + len(end[1])
	}
	var b strings.Builder
	b.Grow(size)
	for _, end := range endings {
		b.WriteString(s.config.prefix)
		b.WriteString(of)
		b.Write(tag)
		b.WriteString("}")
		b.WriteString(end[0])
		b.WriteString(end[1])
	}
	text := b.String()
	for i, end := range endings {
		n := stem + len(end[0]) + len(end[1])
		keys[i], text = text[:n], text[n:]
	}
}

// withName returns a pattern of the Redis keys that end in a name.
func (s *Store) withName(of, name string) (pattern string) {
	return glob.Replace(s.config.prefix) + of + "*}[:=]" + glob.Replace(name)
}

// tagOf returns the tag in a Redis key that ends in a name. It checks the name, since the pattern
// of a name also matches longer names with the same end.
func (s *Store) tagOf(key, of, name string) (tag string, ok bool) {
	rest, ok := strings.CutPrefix(key, s.config.prefix+of)
	if !ok {
		return "", false
	}
	tag, rest, ok = strings.Cut(rest, "}")
	return tag, ok && (rest == ":"+name || rest == "="+name)
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
