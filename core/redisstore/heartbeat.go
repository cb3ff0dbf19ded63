package redisstore

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
)

// maxWholeBeats is the maximum of keys in one call of beatLease, which does more for each key than
// beatLeases.
const maxWholeBeats = 20

type waitedKey = waiting.Key[leaseKeys]

// beat sends heartbeats, and handles the replies. beatLeases covers the usual case, with many keys
// in one call; beatLease handles the keys that need more.
func (s *Store) beat(due []*waitedKey) {
	head := []any{s.inbox.process, strconv.FormatInt(waiting.Elapsed(), 10), s.pushMode(), s.waiting.DeadAfter().Microseconds()}
	rest := s.beatEach(due, waiting.MaxBeatKeys, beatLeases.Call(nil, head...), func(c *script.Call, k *waitedKey) {
		c.Keys = append(c.Keys, k.Record[0], k.Record[3])
	})
	s.beatEach(rest, maxWholeBeats, beatLease.Call(nil, append(head, s.inbox.channels)...), func(c *script.Call, k *waitedKey) {
		c.Keys, c.Args = append(c.Keys, k.Record[:]...), append(c.Args, k.Record.linger(), s.waiting.Resets(k))
	})
}

// beatEach sends heartbeats, on a single server with several keys in one call. add adds a key to a
// call. It returns the keys that need more.
func (s *Store) beatEach(due []*waitedKey, together int, call script.Call, add func(c *script.Call, k *waitedKey)) (rest []*waitedKey) {
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		together = 1
	}
	var calls []script.Call
	groups := slices.Collect(slices.Chunk(due, together))
	for _, group := range groups {
		c := call
		c.Args = slices.Clip(c.Args)
		for _, k := range group {
			add(&c, k)
		}
		calls = append(calls, c)
	}
	var mu sync.Mutex // guards rest
	_ = s.redis.RunEach(s.redis.Life(), opBeat, script.Ordinary, calls, func(i int, reply any, err error) error {
		var r script.Reader
		if err == nil {
			r = *script.Fields(reply)
		}
		for _, k := range groups[i] {
			places, ends := 0, time.Duration(0)
			if err == nil {
				places, ends = int(r.Number()), r.Micros()
				err = r.Err
			}
			if err != nil {
				s.waiting.Silent(k, err)
			} else if places < 0 || s.waiting.Heard(k, places, ends) {
				mu.Lock()
				rest = append(rest, k)
				mu.Unlock()
			}
		}
		return nil
	})
	return rest
}
