package redisstore_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// dump returns all that a server keeps, as text.
func dump(t testing.TB, server *redis.Client) string {
	t.Helper()
	var all strings.Builder
	for _, key := range keysOf(t, server, "*") {
		all.WriteString(key + " " + server.Dump(ctx(), key).Val() + "\n")
	}
	return all.String()
}

func TestKeysOfLocksExpire(t *testing.T) {
	testKeysOfLocksExpire(t)
	t.Run("secret", func(t *testing.T) { testKeysOfLocksExpire(t, redisstore.WithSecret([]byte("pepper"))) })
}

func testKeysOfLocksExpire(t *testing.T, opts ...redisstore.Option) {
	server := redistest.Start(t)
	client, hook := server.Client(), new(scriptKeys)
	client.AddHook(hook)
	direct := server.Client()
	s := newStore(t, client, append(opts, redisstore.WithPrefix("shop"))...)
	seen := 0
	check := func(step string) {
		t.Helper()
		for _, key := range keysOf(t, direct, "*") {
			seen++
			ttl := direct.PTTL(ctx(), key).Val()
			if ttl <= 0 || ttl > 2*time.Hour || strings.HasSuffix(key, "}f") && ttl < time.Hour {
				t.Errorf("%s: %s lives for %v", step, key, ttl)
			}
			if !strings.HasPrefix(key, "shop:l:{") {
				t.Errorf("%s: %s is not a lock's", step, key)
			}
		}
	}
	writer, reader := newClaim("k", "writer").delay(time.Minute), newClaim("k", "reader").shared().queued()
	writer.gets(t, s, store.Granted)
	check("acquire")
	reader.gets(t, s, store.Queued)
	newClaim("k", "next").queued().gets(t, s, store.Queued)
	check("queue")
	w := reader.await(t, s)
	held, err := writer.ttl(time.Hour).renew(s)
	wantOwned(t, "renew", held, err)
	check("renew")
	held, err = s.DowngradeLock(ctx(), writer.hold())
	wantOwned(t, "downgrade", held, err)
	check("downgrade")
	w.granted(t, 5*time.Second)
	check("await")
	writer.ends(t, s, true)
	reader.ends(t, s, true)
	check("release")
	relay := []claim{newClaim("baton", "a"), newClaim("baton", "b"), newClaim("baton", "c")}
	relay[0].gets(t, s, store.Granted)
	for _, c := range relay[1:] {
		c.queued().gets(t, s, store.Queued)
	}
	for i, c := range relay {
		held, err := c.renew(s)
		wantOwned(t, "renew", held, err)
		c.ends(t, s, true)
		check("release to the next")
		if i+1 < len(relay) {
			relay[i+1].queued().gets(t, s, store.Granted)
			check("claim")
		}
	}
	must(t, s.RaiseFence(ctx(), "jobs", "raised", time.Now().Add(time.Minute).UnixMicro()))
	check("raise")
	if seen < 20 {
		t.Fatalf("%d keys: the test does not test what it says", seen)
	}
	hook.mu.Lock()
	defer hook.mu.Unlock()
	for _, keys := range hook.calls {
		if tag := hashTag(keys[0]); tag == "" || slices.ContainsFunc(keys, func(k string) bool { return hashTag(k) != tag }) {
			t.Errorf("keys of one script call are in several slots: %q", keys)
		}
	}
}

// The keys of a lock live as long as its lease and delay, also if these are longer than a queue.
func TestALongLeaseOutlivesTheQueue(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	newClaim("k", "holder").ttl(3*time.Hour).delay(time.Hour).gets(t, s, store.Granted)
	newClaim("k", "waiter").queued().gets(t, s, store.Queued)
	for _, pattern := range []string{"*:jobs", "*}h"} {
		for _, key := range keysOf(t, server.Client(), pattern) {
			if ttl := server.Client().PTTL(ctx(), key).Val(); ttl < 4*time.Hour {
				t.Errorf("%s lives for %v", key, ttl)
			}
		}
	}
}

func TestASecretHidesTheKeysOfLocks(t *testing.T) {
	server := redistest.Start(t)
	open := newStore(t, server.Client())
	hidden := newStore(t, server.Client(), redisstore.WithSecret([]byte("pepper")))
	for _, c := range []claim{newClaim("SECRET", "a"), newClaim("SECRET", "b").queued(), newClaim("SECRET", "c").queued()} {
		_, err := c.acquire(hidden)
		must(t, err)
	}
	if strings.Contains(dump(t, server.Client()), "SECRET") {
		t.Error("the server has the text of a key")
	}
	for state, err := range hidden.ListLocks(ctx(), "jobs") {
		if err != nil || len(state.Key) != 22 || len(state.Holders) != 1 || state.Waiting != 2 {
			t.Errorf("listed %+v, %v; want the hash of the key", state, err)
		}
	}
	if state, err := hidden.InspectLock(ctx(), "jobs", "SECRET"); err != nil || state.Key != "SECRET" {
		t.Errorf("inspected %+v, %v", state, err)
	}
	newClaim("SECRET", "d").gets(t, open, store.Granted)
}

func TestKeysOfAnotherTypeAreLeftAlone(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	for _, suffix := range []string{"=jobs", ":jobs", "h", "q", "w", "f", "x:"} {
		t.Run(suffix, func(t *testing.T) {
			must(t, direct.FlushAll(ctx()).Err())
			s := newStore(t, direct)
			good, bad := newClaim("good", "good"), newClaim("bad", "bad")
			good.gets(t, s, store.Granted)
			bad.gets(t, s, store.Granted)
			stem := stemOf(t, direct, "bad")
			if suffix != "=jobs" {
				waiter := newClaim("bad", "waiter").queued()
				waiter.gets(t, s, store.Queued) // so that it is not a lone one
				waiter.ends(t, s, false)
			}
			key := stem + suffix
			if suffix == "x:" {
				key += bad.ID
			}
			direct.Del(ctx(), key)
			must(t, direct.SAdd(ctx(), key, "member").Err())
			held, err := s.RenewLocks(ctx(), []store.LockRef{bad.hold(), good.hold()})
			if err != nil || len(held) != 2 || !held[1] {
				t.Errorf("renewed %v, %v; want the good one at least", held, err)
			}
			before := dump(t, direct)
			if suffix != "x:" {
				_, err = newClaim("bad", "other").queued().acquire(s)
				wantUnavailable(t, err, false)
			}
			if suffix != "f" {
				_, err = bad.release(s)
				wantUnavailable(t, err, false)
			}
			if after := dump(t, direct); after != before {
				t.Errorf("an error changed something: %q, then %q", before, after)
			}
			for _, err := range s.ListLocks(ctx(), "jobs") {
				if err != nil {
					t.Errorf("list: %v", err)
				}
			}
			good.ends(t, s, true)
		})
	}
}

// stemOf returns the common prefix of the Redis keys of a lone hold.
func stemOf(t testing.TB, server *redis.Client, key string) string {
	t.Helper()
	for _, name := range keysOf(t, server, "*=jobs") {
		if strings.Contains(server.Get(ctx(), name).Val(), key) {
			return strings.TrimSuffix(name, "=jobs")
		}
	}
	t.Fatalf("no lone hold of the lock %q", key)
	return ""
}

// A lone hold does not need the other keys. Another request reports the damaged one before it has
// changed anything.
func TestALoneHoldAmongKeysOfAnotherType(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, direct)
	for _, suffix := range []string{":jobs", "h", "q", "w", "f"} {
		t.Run(suffix, func(t *testing.T) {
			must(t, direct.FlushAll(ctx()).Err())
			c := newClaim("k", "holder")
			c.gets(t, s, store.Granted)
			key := stemOf(t, direct, "k") + suffix
			direct.Del(ctx(), key)
			must(t, direct.SAdd(ctx(), key, "member").Err())
			before := dump(t, direct)
			_, err := newClaim("k", "other").queued().acquire(s)
			wantUnavailable(t, err, false)
			if after := dump(t, direct); after != before {
				t.Errorf("an error changed something: %q, then %q", before, after)
			}
			held, err := c.renew(s)
			wantOwned(t, "renew", held, err)
			c.ends(t, s, true)
		})
	}
}

// A text that is no lone hold does not prevent a grant.
func TestADamagedLoneHold(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, direct)
	for _, text := range []string{"", "x", "1:2:3:", "17:0:0:", "1790000000000000:9:9:short", "1790000000000000:1:1:ikQX:1:2:3:4:0:"} {
		c, next := newClaim("k"+text, "holder"), newClaim("k"+text, "next")
		c.gets(t, s, store.Granted)
		must(t, direct.Set(ctx(), stemOf(t, direct, "k"+text)+"=jobs", text, time.Minute).Err())
		held, err := c.renew(s)
		if held || err != nil {
			t.Errorf("%q: renewed %v, %v", text, held, err)
		}
		for _, err := range s.ListLocks(ctx(), "jobs") {
			if err != nil {
				t.Errorf("%q: list: %v", text, err)
			}
		}
		c.ends(t, s, false)
		next.gets(t, s, store.Granted)
		next.ends(t, s, true)
	}
}

// A lone hold behaves as one with waiters does.
func TestALoneHoldBehavesLikeOthers(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	steps := map[string]func(*testing.T, claim){
		"renew": func(t *testing.T, c claim) {
			held, err := c.renew(s)
			wantOwned(t, "renew", held, err)
		},
		"again": func(t *testing.T, c claim) { c.gets(t, s, store.Granted) },
		"another": func(t *testing.T, c claim) {
			newClaim(c.Key, "x"+c.ID).gets(t, s, store.Taken)
			waiter := newClaim(c.Key, "y"+c.ID).queued()
			waiter.gets(t, s, store.Queued)
			waiter.ends(t, s, false)
			must(t, server.Client().Del(ctx(), keysOf(t, server.Client(), "*x:y*")...).Err())
		},
		"inspect": func(t *testing.T, c claim) {
			if held, err := s.VerifyLock(ctx(), c.hold()); !held || err != nil {
				t.Errorf("verify: %v, %v", held, err)
			}
			other := newClaim(c.Key, "x"+c.ID)
			if held, err := s.VerifyLock(ctx(), other.hold()); held || err != nil {
				t.Errorf("verify another: %v, %v", held, err)
			}
			if held, err := other.renew(s); held || err != nil {
				t.Errorf("renew another: %v, %v", held, err)
			}
		},
	}
	names := slices.Sorted(maps.Keys(steps))
	var states []store.LockState
	for n := range 4 * 4 * 4 { // every order of three of them
		c := newClaim("k", "holder of the first")
		c.Holder = "somebody: of a\nkind"
		first := c.gets(t, s, store.Granted)
		for _, i := range []int{n % 4, n / 4 % 4, n / 16} {
			steps[names[i]](t, c)
		}
		for state, err := range s.ListLocks(ctx(), "jobs") {
			must(t, err)
			states = append(states, state)
		}
		state := states[len(states)-1]
		if len(states) != n+1 || state.Key != "k" || state.Waiting != 0 || len(state.Holders) != 1 ||
			state.Holders[0].Fence != first.Fence || state.Holders[0].LastFence != first.LastFence || state.Holders[0].Meta != c.Holder {
			t.Fatalf("listed %+v, want fence %d", states[min(n, len(states)-1):], first.Fence)
		}
		c.ends(t, s, true)
		c.ends(t, s, true) // sent twice
		c.gets(t, s, store.Withdrawn)
		if keys := server.Client().Keys(ctx(), "*jobs").Val(); len(keys) != 0 {
			t.Fatalf("left behind: %q", keys)
		}
		must(t, server.Client().FlushAll(ctx()).Err())
	}
}

func TestLocksWhenMemoryIsFull(t *testing.T) { eachForm(t, locksWhenMemoryIsFull) }

func locksWhenMemoryIsFull(t *testing.T, server *redistest.Server, client *redis.Client) {
	direct := server.Client()
	log := new(logbook)
	s := newStore(t, client, log.option())
	released, renewed, downgraded, forced := newClaim("a", "a"), newClaim("b", "b"), newClaim("c", "c"), newClaim("d", "d")
	released.gets(t, s, store.Granted)
	renewed.gets(t, s, store.Granted)
	downgraded.gets(t, s, store.Granted)
	grant := forced.gets(t, s, store.Granted)
	next := newClaim("a", "next").queued()
	next.gets(t, s, store.Queued)
	w := next.await(t, s)
	configure(t, direct, "maxmemory", "1")
	for range 10 { // twice what trips the breaker
		_, err := newClaim("new", "new").acquire(s)
		wantUnavailable(t, err, false)
	}
	for range 2 {
		held, err := renewed.renew(s)
		wantOwned(t, "renew", held, err)
		held, err = s.DowngradeLock(ctx(), downgraded.hold())
		wantOwned(t, "downgrade", held, err)
		released.ends(t, s, true)
	}
	done, err := s.ForceUnlock(ctx(), "jobs", "d", grant.Fence)
	wantOwned(t, "force", done, err)
	held, err := s.VerifyLock(ctx(), renewed.hold())
	wantOwned(t, "verify", held, err)
	if state, err := s.InspectLock(ctx(), "jobs", "a"); err != nil || len(state.Holders) != 0 || state.Waiting != 1 {
		t.Errorf("inspect: %+v, %v", state, err)
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	configure(t, direct, "maxmemory", "0")
	w.granted(t, 5*time.Second)
}

func TestEvictionIsRefusedByLocks(t *testing.T) {
	server := redistest.Start(t)
	configure(t, server.Client(), "maxmemory-policy", "volatile-ttl")
	_, err := newClaim("k", "a").acquire(newStore(t, server.Client()))
	wantUnavailable(t, err, false)
	newClaim("k", "b").gets(t, newStore(t, server.Client(), redisstore.AllowEviction()), store.Granted)
}

func TestFences(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	c := newClaim("k", "a")
	first := c.gets(t, s, store.Granted)
	if d := time.Since(time.UnixMicro(first.Fence)); d < 0 || d > time.Minute {
		t.Errorf("fence %d is not of now", first.Fence)
	}
	c.ends(t, s, true)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	must(t, s.RaiseFence(ctx(), "jobs", "k", ahead))
	must(t, s.RaiseFence(ctx(), "jobs", "k", 5)) // lowers nothing
	c = newClaim("k", "b")
	second := c.gets(t, s, store.Granted)
	if second.Fence != ahead+1 || second.LastFence != second.Fence {
		t.Errorf("fences %d to %d, want %d only, since it is ahead of the clock", second.Fence, second.LastFence, ahead+1)
	}
	for _, key := range keysOf(t, server.Client(), "*}f") {
		if ttl := server.Client().PTTL(ctx(), key).Val(); ttl < time.Hour+30*time.Second {
			t.Errorf("the fence lives for %v, less than its lead and the lease", ttl)
		}
	}
	if err := s.RaiseFence(ctx(), "jobs", "k", 1<<60); err == nil {
		t.Error("raised beyond what a script can count")
	}
	c.ends(t, s, true)
	must(t, server.Client().FlushAll(ctx()).Err())
	if third := newClaim("k", "c").gets(t, s, store.Granted); third.Fence <= first.LastFence {
		t.Errorf("fence %d after %d and a flush", third.Fence, first.LastFence)
	}
}

func TestAClockThatStepsBackStretchesNoLease(t *testing.T) {
	server := miniredis.RunT(t)
	s := newStore(t, dial(t, server.Addr(), time.Second))
	now := time.Now()
	server.SetTime(now)
	first := newClaim("k", "a").ttl(10*time.Second).gets(t, s, store.Granted)
	reader := newClaim("shared", "r").shared().ttl(10 * time.Second)
	reader.gets(t, s, store.Granted)
	now = now.Add(-time.Hour)
	server.SetTime(now)
	for _, key := range []string{"k", "shared"} {
		reply := newClaim(key, "b").gets(t, s, store.Taken)
		if reply.Remaining <= 0 || reply.Remaining > 10*time.Second {
			t.Errorf("a lease of 10s has %v to go", reply.Remaining)
		}
		newClaim(key, "dead").queued().gets(t, s, store.Queued)
	}
	server.SetTime(now.Add(11 * time.Second)) // and the waiter has expired
	second := newClaim("k", "c").gets(t, s, store.Granted)
	if second.Fence <= first.LastFence || second.LastFence != second.Fence {
		t.Errorf("fences %d to %d, after %d and ahead of the clock", second.Fence, second.LastFence, first.LastFence)
	}
	newClaim("shared", "c").gets(t, s, store.Granted)
	reader.ends(t, s, false)
}

func TestUptime(t *testing.T) {
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	if up, err := s.Uptime(ctx()); err != nil || up < 0 || up > time.Minute {
		t.Errorf("%v, %v", up, err)
	}
	server.Stop()
	_, err := s.Uptime(ctx())
	wantUnavailable(t, err, false)
}
