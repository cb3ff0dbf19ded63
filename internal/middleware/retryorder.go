package middleware

import (
	"hash/maphash"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

const (
	// maxPlaces bounds how much later than the first token a caller's delay ends. A call fails if its
	// delay ends after its deadline, and a client that ignores its delay must not delay the others
	// without bound.
	maxPlaces = 20 * time.Second
	// retryShards times keysPerShard keys have an order, about 60 bytes each. Callers of further keys
	// get the time of the first token.
	retryShards  = 16
	keysPerShard = 1024
)

// RetryOrder spreads the retries of callers that a rate limit refuses: the first gets the time of
// the next token, and each further one the time of one more. With the same time, all would retry at
// once, and all but one would be refused again.
//
// It keeps a hash of each key until the last of these times, in this process alone.
type RetryOrder struct {
	seed   maphash.Seed
	start  time.Time
	shards [retryShards]retryShard
}

type retryShard struct {
	mu sync.Mutex
	// next has, by the hash of a key, the time at which its next caller is to come back, in
	// nanoseconds since the start.
	next expiry.Table[uint64, int64]
}

// NewRetryOrder returns an order without callers.
func NewRetryOrder() *RetryOrder {
	o := &RetryOrder{seed: maphash.MakeSeed(), start: time.Now()}
	for i := range o.shards {
		o.shards[i].next = expiry.NewTable[uint64, int64](keysPerShard, nil)
	}
	return o
}

// Delay returns the delay for the next caller of a key that this limit has refused.
func (o *RetryOrder) Delay(key string, l tokenbucket.LimitState) time.Duration {
	interval := int64(l.Window) / max(l.Capacity, 1)
	hash := maphash.String(o.seed, key)
	shard := &o.shards[hash%retryShards]
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := int64(time.Since(o.start))
	first := now + int64(l.RetryAfter) // when there is a token
	if e := shard.next.Get(hash, now); e != nil {
		at := min(max(first, e.Value), first+int64(maxPlaces))
		e.Value, e.Expires = at+interval, at+interval
		return time.Duration(at - now)
	}
	if shard.next.Room(1, now) {
		shard.next.Add(hash, first+interval, first+interval, now)
	}
	return l.RetryAfter
}
