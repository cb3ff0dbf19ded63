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

// leaseKeys are the Redis keys of the leases of a key, as in scripts/lib/lease.lua. They are in one
// slot of a Cluster.
type leaseKeys [5]string

// The part of a key between the prefix and the tag.
const (
	ofLeases    = ":e:{"
	ofLatches   = ":c:{"
	ofTasks     = ":d:{"
	ofDocuments = ":n:{"
)

func (s *Store) leaseKeys(name, key string) leaseKeys {
	tag := s.hash(name, key)
	var room [256]byte
	text := append(append(append(room[:0], s.config.prefix...), ofLeases...), tag[:]...)
	return leaseKeysOf(append(append(text, "}:"...), name...))
}

// leaseKeysOf returns the keys of a record. The record's own key ends in the name of its lock or
// semaphore, by which a listing finds it. The keys are parts of one string, which saves
// allocations.
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

// Name implements waiting.Record.
func (k leaseKeys) Name() string { return k[0] }

// linger returns for how many ms the record is kept without holds and waiters. The record of a lock
// has its largest fence, and must outlive the last holder, whose fence is compared with later ones.
func (k *leaseKeys) linger() int64 {
	if _, name, _ := strings.Cut(k[0], "}:"); strings.HasPrefix(name, store.SemaphoreKind) {
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

// partitions is the number of hash tags that all token buckets share, and so of slots of a Cluster.
// A script call has keys of one slot only, so it makes the decisions of a batch about one
// partition: the fewer there are, the fewer calls a batch is. 48 partitions divide evenly among 2,
// 3, 4, 6, 8, 12, 16 or 24 masters, and are enough for the masters of most Clusters.
const partitions = 48

// partitionTags are the hash tags. Their slots divide all slots evenly, in this order, to within 4.
const partitionTags = "cru0Pjg2BhogA0djIeEpuKXDrpd2oDv0SjPIP2uhXgTrdIIFoZqMrnE6StMcc4FnkaIXq6wpk9F6cloyqnrMr6WlzcXZFMkB"

const (
	partitionTagSize = len(partitionTags) / partitions
	bucketHashSize   = tagSize - 1 // 126 bits; with a prefix of two bytes, Redis stores a key in 32
)

// bucketTag is the common start of the Redis keys of a key's buckets: the hash tag of the partition
// of its home, and a hash of the key. For a key in the home of another one, it is a hash of both.
type bucketTag struct {
	text      [64 + len(":t:{") + partitionTagSize + len("}") + tagSize]byte
	size      int
	partition uint8
}

func (s *Store) tagged(r *store.TokenRequest) bucketTag {
	var t bucketTag
	home := r.InHome()
	sum := s.sum(nil, home.Limiter, home.Key)
	t.partition = uint8(binary.BigEndian.Uint32(sum[hashedBytes:]) % partitions) // of bytes that are not in the key
	if home != (store.BucketHome{Limiter: r.Limiter, Key: r.Key}) {
		sum = s.sum(sum[:], r.Limiter, r.Key)
	}
	text := append(append(t.text[:0], s.config.prefix...), ":t:{"...)
	text = append(append(text, partitionTags[int(t.partition)*partitionTagSize:][:partitionTagSize]...), '}')
	t.size = len(text) + bucketHashSize
	base64.RawURLEncoding.Encode(t.text[len(text):], sum[:hashedBytes])
	return t
}

// key returns the Redis key of a bucket.
func (t *bucketTag) key(bucket string) string {
	if bucket == "" {
		return string(t.text[:t.size])
	}
	return string(t.text[:t.size]) + ":" + bucket
}

// appendBucketKeys appends the Redis keys of the buckets of a request's charges.
func (s *Store) appendBucketKeys(keys []string, r *store.TokenRequest) []string {
	tag := s.tagged(r)
	return tag.appendKeys(keys, r)
}

func (t *bucketTag) appendKeys(keys []string, r *store.TokenRequest) []string {
	for i := range r.Charges {
		keys = append(keys, t.key(r.Charges[i].Bucket))
	}
	return keys
}

// tag returns the hash of a mechanism's name and a key.
func (s *Store) tag(name, key string) string {
	tag := s.hash(name, key)
	return string(tag[:])
}

const (
	tagSize     = 22
	hashedBytes = 16
)

func (s *Store) hash(name, key string) (tag [tagSize]byte) {
	sum := s.sum(nil, name, key)
	base64.RawURLEncoding.Encode(tag[:], sum[:hashedBytes])
	return tag
}

// sum returns the hash of a mechanism's name and a key. If within is not nil, it is another hash
// that the result depends on, too.
func (s *Store) sum(within []byte, name, key string) [sha256.Size]byte {
	var room [128]byte // most fit, and need no allocation
	size := uint64(len(name))
	if within != nil {
		size = ^size // unlike that of any name
	}
	text := append(binary.BigEndian.AppendUint64(room[:0], size), within...)
	text = append(append(text, name...), key...)
	sum := sha256.Sum256(text)
	if len(s.config.secret) > 0 {
		h := hmac.New(sha256.New, s.config.secret)
		h.Write([]byte(string(text))) // a copy, so that the array above stays on the stack
		copy(sum[:], h.Sum(nil))
	}
	return sum
}
