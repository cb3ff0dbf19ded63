package redisstore_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// eachClock runs a test with two stores whose server's clock can be stepped: set sets its difference
// from the time of day.
func eachClock(t *testing.T, test func(t *testing.T, s, other *redisstore.Store, set func(time.Duration))) {
	t.Run("miniredis", func(t *testing.T) {
		server, now := miniredis.RunT(t), time.Now()
		set := func(d time.Duration) { server.SetTime(now.Add(d)) }
		set(0)
		client := dial(t, server.Addr(), time.Second)
		test(t, newStore(t, client), newStore(t, client), set)
	})
	t.Run("redis", func(t *testing.T) {
		server, ahead := redistest.Start(t), time.Duration(0)
		direct := server.Client()
		test(t, newStore(t, direct), newStore(t, direct), func(d time.Duration) {
			moveTimes(t, direct, -d-ahead)
			ahead = -d
		})
	})
}

// leaseTime is a time in a text about leases.
var leaseTime = regexp.MustCompile(`1[0-9]{15}:`)

// moveTimes adds a duration to all times that a server keeps, as if its clock had stepped back by
// it.
func moveTimes(t *testing.T, server *redis.Client, by time.Duration) {
	t.Helper()
	moved := func(text string) string {
		n, err := strconv.ParseInt(text, 10, 64)
		must(t, err)
		return strconv.FormatInt(n+by.Microseconds(), 10)
	}
	leases := func(text string) string {
		return leaseTime.ReplaceAllStringFunc(text, func(n string) string { return moved(n[:16]) + ":" })
	}
	for _, key := range keysOf(t, server, "*") {
		switch server.Type(ctx(), key).Val() {
		case "string":
			value := server.Get(ctx(), key).Val()
			switch {
			case strings.HasPrefix(value, "3F"): // see records.go
				value = value[:77] + moved(value[77:93]) + value[93:]
			case strings.HasPrefix(value, "L"):
				value = leases(value)
			}
			must(t, server.SetArgs(ctx(), key, value, redis.SetArgs{KeepTTL: true}).Err())
		case "zset": // of leases: the order
			for _, member := range server.ZRange(ctx(), key, 0, -1).Val() {
				at := map[byte]int{'e': 1, 'q': 9}[member[0]]
				now := member[:at] + moved(member[at:at+16]) + member[at+16:]
				must(t, server.ZAdd(ctx(), key, redis.Z{Member: now}).Err())
				must(t, server.ZRem(ctx(), key, member).Err())
			}
		case "hash":
			for field, value := range server.HGetAll(ctx(), key).Val() {
				must(t, server.HSet(ctx(), key, field, leases(value)).Err())
			}
		}
	}
}

// If the server's clock steps back an hour, the leases of dead processes end after their TTL by the
// stepped clock, also for requests that do not queue.
func TestLeasesEndAfterTheClockSteppedBack(t *testing.T) {
	testpace.Parallel(t)
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
			newPermit("k", "dead", 1, 1).ttl(ttl).gets(t, s, store.Granted)
		}, taken(newPermit("k", "tries", 1, 1))},
		"heavy permits": {func(t *testing.T, s *redisstore.Store) {
			newPermit("k", "dead", 3, 6).ttl(ttl).gets(t, s, store.Granted)
			newPermit("k", "dead too", 3, 6).ttl(ttl/2).gets(t, s, store.Granted)
		}, taken(newPermit("k", "tries", 5, 6))},
		"permits beside one with a long lease": {func(t *testing.T, s *redisstore.Store) {
			newPermit("k", "alive", 1, 3).ttl(3*time.Hour).gets(t, s, store.Granted)
			newPermit("k", "dead", 1, 3).ttl(ttl).gets(t, s, store.Granted)
			newPermit("k", "dead too", 1, 3).ttl(ttl).gets(t, s, store.Granted)
		}, taken(newPermit("k", "tries", 1, 3))},
		"an attempt":                    {begins, busy(false, store.Undecided)},
		"an attempt that may run again": {begins, busy(true, store.Started)},
	} {
		t.Run(name, func(t *testing.T) {
			eachClock(t, func(t *testing.T, s, _ *redisstore.Store, set func(time.Duration)) {
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
	testpace.Parallel(t)
	for name, claim := range map[string]func(id string) claim{
		"lock":      func(id string) claim { return newClaim("k", id) },
		"semaphore": func(id string) claim { return newPermit("k", id, 1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			eachClock(t, func(t *testing.T, s, dead *redisstore.Store, set func(time.Duration)) {
				claim("holder").gets(t, s, store.Granted)
				for _, id := range []string{"a", "b", "c"} { // no call awaits them
					claim(id).queued().gets(t, dead, store.Queued)
				}
				claim("holder").ends(t, s, true)
				for waited := time.Duration(0); ; waited += time.Second {
					set(waited - time.Hour)
					if reply, err := claim("tries").acquire(s); err == nil && reply.Outcome == store.Granted {
						return
					}
					if waited > 8*time.Second {
						t.Fatalf("not free after %v", waited)
					}
				}
			})
		})
	}
}

func TestAClockThatStepsBackStretchesNoLease(t *testing.T) {
	testpace.Parallel(t)
	eachClock(t, func(t *testing.T, s, dead *redisstore.Store, set func(time.Duration)) {
		first := newClaim("k", "a").ttl(10*time.Second).gets(t, s, store.Granted)
		reader := newClaim("shared", "r").shared().ttl(10 * time.Second)
		reader.gets(t, s, store.Granted)
		set(-time.Hour)
		for _, key := range []string{"k", "shared"} {
			reply := newClaim(key, "b").gets(t, s, store.Taken)
			if reply.Remaining <= 0 || reply.Remaining > 10*time.Second {
				t.Errorf("a lease of 10s has %v to go", reply.Remaining)
			}
			newClaim(key, "dead").queued().gets(t, dead, store.Queued)
		}
		set(-time.Hour + 11*time.Second)
		for _, key := range []string{"k", "shared"} {
			between := newClaim(key, "c") // has the dead one granted for a while, if that still seems alive
			_, err := between.acquire(s)
			must(t, err)
			_, err = between.release(s)
			must(t, err)
		}
		set(-time.Hour + 14*time.Second)
		second := newClaim("k", "d").gets(t, s, store.Granted)
		if second.Fence <= first.LastFence || second.LastFence != second.Fence {
			t.Errorf("fences %d to %d, after %d and ahead of the clock", second.Fence, second.LastFence, first.LastFence)
		}
		newClaim("shared", "d").gets(t, s, store.Granted)
		reader.ends(t, s, false)
	})
}
