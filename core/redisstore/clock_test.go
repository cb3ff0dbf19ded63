package redisstore_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// eachClock runs a test with stores whose server's clock can be stepped: set sets its difference
// from the time of day.
func eachClock(t *testing.T, test func(t *testing.T, s *redisstore.Store, set func(time.Duration))) {
	t.Run("miniredis", func(t *testing.T) {
		server, now := miniredis.RunT(t), time.Now()
		set := func(d time.Duration) { server.SetTime(now.Add(d)) }
		set(0)
		test(t, newStore(t, dial(t, server.Addr(), time.Second)), set)
	})
	t.Run("redis", func(t *testing.T) {
		server, ahead := redistest.Start(t), time.Duration(0)
		direct := server.Client()
		test(t, newStore(t, server.Client()), func(d time.Duration) {
			moveTimes(t, direct, -d-ahead)
			ahead = -d
		})
	})
}

// moveTimes adds a duration to all times that a server keeps, as if its clock had stepped back by
// it.
func moveTimes(t *testing.T, server *redis.Client, by time.Duration) {
	t.Helper()
	moved := func(text string) string {
		n, err := strconv.ParseInt(text, 10, 64)
		must(t, err)
		return strconv.FormatInt(n+by.Microseconds(), 10)
	}
	for _, key := range keysOf(t, server, "*") {
		switch server.Type(ctx(), key).Val() {
		case "string":
			value := server.Get(ctx(), key).Val()
			switch first, rest, ok := strings.Cut(value, ":"); {
			case strings.HasPrefix(value, "2F"): // see records.go
				value = value[:77] + moved(value[77:93]) + value[93:]
			case len(first) == 16 && ok: // a lone hold
				value = moved(first) + ":" + rest
			case len(first) == 16: // a fence
				value = moved(first)
			}
			must(t, server.SetArgs(ctx(), key, value, redis.SetArgs{KeepTTL: true}).Err())
		case "zset":
			for _, z := range server.ZRangeWithScores(ctx(), key, 0, -1).Val() {
				if z.Score > 1e15 { // else it is a place in a queue
					must(t, server.ZIncrBy(ctx(), key, float64(by.Microseconds()), z.Member.(string)).Err())
				}
			}
		case "hash":
			if fence := server.HGet(ctx(), key, "f").Val(); fence != "" {
				must(t, server.HSet(ctx(), key, "f", moved(fence)).Err())
			}
		}
	}
}

// If the server's clock steps back an hour, the leases of dead processes end after their TTL by the
// stepped clock, also for requests that do not queue.
func TestLeasesEndAfterTheClockSteppedBack(t *testing.T) {
	const ttl = 10 * time.Second
	taken := func(c claim) func(*testing.T, *redisstore.Store, bool) {
		return func(t *testing.T, s *redisstore.Store, free bool) {
			t.Helper()
			if free {
				c.gets(t, s, store.Granted)
				return
			}
			if reply := c.gets(t, s, store.Taken); reply.Remaining > ttl+ttl {
				t.Errorf("a lease of %v has %v to go", ttl, reply.Remaining)
			}
		}
	}
	full := func(r request) func(*testing.T, *redisstore.Store, bool) {
		return func(t *testing.T, s *redisstore.Store, free bool) {
			t.Helper()
			want := store.Taken
			if free {
				want = store.Granted
			}
			if reply := r.gets(t, s, want); !free && reply.Remaining > time.Minute {
				t.Errorf("a lease of %v has %v to go", ttl, reply.Remaining)
			}
		}
	}
	busy := func(rerun bool, then store.BeginOutcome) func(*testing.T, *redisstore.Store, bool) {
		return func(t *testing.T, s *redisstore.Store, free bool) {
			t.Helper()
			o, want := newOp("op").by("other"), store.Busy
			if free {
				want = then
			}
			reply, err := s.BeginOperation(ctx(), store.BeginRequest{
				AttemptRef: o.ref(), Fingerprint: o.fingerprint, Lease: ttl, Retention: time.Hour, Rerun: rerun,
			})
			if err != nil || reply.Outcome != want || reply.Remaining > ttl {
				t.Fatalf("begin: %+v, %v, want outcome %d", reply, err, want)
			}
		}
	}
	begins := func(t *testing.T, s *redisstore.Store) {
		o := newOp("op")
		reply, err := s.BeginOperation(ctx(), store.BeginRequest{
			AttemptRef: o.ref(), Fingerprint: o.fingerprint, Lease: ttl, Retention: time.Hour,
		})
		if err != nil || reply.Outcome != store.Started {
			t.Fatalf("begin: %+v, %v", reply, err)
		}
	}
	left := func(t *testing.T, s *redisstore.Store, c claim) { // so that the hold is not a lone one
		t.Helper()
		c.gets(t, s, store.Queued)
		c.ends(t, s, false)
	}
	for name, c := range map[string]struct {
		hold  func(t *testing.T, s *redisstore.Store)
		tries func(t *testing.T, s *redisstore.Store, free bool)
	}{
		"a lone lock": {func(t *testing.T, s *redisstore.Store) {
			newClaim("k", "dead").ttl(ttl).gets(t, s, store.Granted)
		}, taken(newClaim("k", "tries"))},
		"a lock with a delay": {func(t *testing.T, s *redisstore.Store) {
			newClaim("k", "dead").ttl(ttl/2).delay(ttl/2).gets(t, s, store.Granted)
		}, taken(newClaim("k", "tries"))},
		"a lock after a waiter withdrew": {func(t *testing.T, s *redisstore.Store) {
			newClaim("k", "dead").ttl(ttl).gets(t, s, store.Granted)
			left(t, s, newClaim("k", "left").queued())
		}, taken(newClaim("k", "tries"))},
		"a lone shared lock": {func(t *testing.T, s *redisstore.Store) {
			newClaim("k", "dead").shared().ttl(ttl).gets(t, s, store.Granted)
		}, taken(newClaim("k", "tries"))},
		"a shared lock": {func(t *testing.T, s *redisstore.Store) {
			newClaim("k", "dead").shared().ttl(ttl).gets(t, s, store.Granted)
			newClaim("k", "dead too").shared().ttl(ttl/2).gets(t, s, store.Granted)
		}, taken(newClaim("k", "tries"))},
		"a lock, for a shared request": {func(t *testing.T, s *redisstore.Store) {
			newClaim("k", "dead").ttl(ttl).gets(t, s, store.Granted)
		}, taken(newClaim("k", "tries").shared())},
		"a permit": {func(t *testing.T, s *redisstore.Store) {
			newRequest("k", "dead", 1, 1).ttl(ttl).gets(t, s, store.Granted)
		}, full(newRequest("k", "tries", 1, 1))},
		"heavy permits": {func(t *testing.T, s *redisstore.Store) {
			newRequest("k", "dead", 3, 6).ttl(ttl).gets(t, s, store.Granted)
			newRequest("k", "dead too", 3, 6).ttl(ttl/2).gets(t, s, store.Granted)
		}, full(newRequest("k", "tries", 5, 6))},
		"permits beside one with a long lease": {func(t *testing.T, s *redisstore.Store) {
			newRequest("k", "alive", 1, 3).ttl(3*time.Hour).gets(t, s, store.Granted)
			newRequest("k", "dead", 1, 3).ttl(ttl).gets(t, s, store.Granted)
			newRequest("k", "dead too", 1, 3).ttl(ttl).gets(t, s, store.Granted)
		}, full(newRequest("k", "tries", 1, 3))},
		"an attempt":                    {begins, busy(false, store.Undecided)},
		"an attempt that may run again": {begins, busy(true, store.Started)},
	} {
		t.Run(name, func(t *testing.T) {
			eachClock(t, func(t *testing.T, s *redisstore.Store, set func(time.Duration)) {
				c.hold(t, s)
				set(-time.Hour)
				for range 2 {
					c.tries(t, s, false)
				}
				set(-time.Hour + ttl/2)
				c.tries(t, s, false)
				set(-time.Hour + ttl + time.Second)
				c.tries(t, s, true)
			})
		})
	}
}

// The same holds for places in the queue: dead waiters delay others for no longer than one that has
// just died.
func TestDeadWaitersExpireAfterTheClockSteppedBack(t *testing.T) {
	for name, c := range map[string]struct {
		queue func(t *testing.T, s *redisstore.Store)
		free  func(t *testing.T, s *redisstore.Store) bool
	}{
		"lock": {func(t *testing.T, s *redisstore.Store) {
			holder := newClaim("k", "holder")
			holder.gets(t, s, store.Granted)
			for _, id := range []string{"a", "b", "c"} {
				newClaim("k", id).queued().gets(t, s, store.Queued)
			}
			holder.ends(t, s, true)
		}, func(t *testing.T, s *redisstore.Store) bool {
			reply, err := newClaim("k", "tries").acquire(s)
			return err == nil && reply.Outcome == store.Granted
		}},
		"semaphore": {func(t *testing.T, s *redisstore.Store) {
			holder := newRequest("k", "holder", 1, 1)
			holder.gets(t, s, store.Granted)
			for _, id := range []string{"a", "b", "c"} {
				newRequest("k", id, 1, 1).queued().gets(t, s, store.Queued)
			}
			holder.ends(t, s, true)
		}, func(t *testing.T, s *redisstore.Store) bool {
			reply, err := newRequest("k", "tries", 1, 1).acquire(s)
			return err == nil && reply.Outcome == store.Granted
		}},
	} {
		t.Run(name, func(t *testing.T) {
			eachClock(t, func(t *testing.T, s *redisstore.Store, set func(time.Duration)) {
				c.queue(t, s)
				for waited := time.Duration(0); ; waited += time.Second {
					set(waited - time.Hour)
					if c.free(t, s) {
						return
					}
					if waited > 40*time.Second {
						t.Fatalf("not free after %v", waited)
					}
				}
			})
		})
	}
}
