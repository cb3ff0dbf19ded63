package redisstore_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// dump returns all that a server keeps, as text.
func dump(t testing.TB, server *redis.Client) string {
	t.Helper()
	var all strings.Builder
	for _, key := range slices.Sorted(slices.Values(keysOf(t, server, "*"))) {
		all.WriteString(key + " " + server.Dump(ctx(), key).Val() + "\n")
	}
	return all.String()
}

// stemOf returns the common start of the Redis keys of a lock, whose record has the key's name.
func stemOf(t testing.TB, server *redis.Client, key string) string {
	t.Helper()
	for _, name := range keysOf(t, server, "*:ljobs") {
		if _, rest, _ := strings.Cut(server.Get(ctx(), name).Val(), ":"); strings.Contains(rest, ":"+key) {
			return strings.TrimSuffix(name, ":ljobs")
		}
	}
	t.Fatalf("no record of the lock %q", key)
	return ""
}

// onlyRecords fails the test if a server keeps more of leases than records without holds and
// waiters, and tombstones.
func onlyRecords(t testing.TB, server *redis.Client) {
	t.Helper()
	for _, key := range keysOf(t, server, "*") {
		if strings.HasSuffix(key, "}x") || key == "lk:probe" {
			continue
		}
		value := server.Get(ctx(), key).Val()
		if !strings.HasSuffix(key, ":ljobs") || len(value) < 2 || !strings.ContainsRune("048c", rune(value[1])) {
			t.Errorf("%s is left: %q", key, value)
		}
	}
}

// tombstoned returns a claim of which the server has a tombstone: its acquire may be late.
func tombstoned(t testing.TB, s *redisstore.Store, key string) claim {
	t.Helper()
	canceled, cancel := context.WithCancel(ctx())
	cancel()
	late := newClaim(key, "late")
	if _, err := s.AcquireLease(canceled, late.LeaseRequest); err == nil {
		t.Fatal("acquired with a canceled context")
	}
	late.ends(t, s, false)
	return late
}

func TestKeysOfLeasesExpire(t *testing.T) {
	testpace.Parallel(t)
	testKeysOfLeasesExpire(t)
	t.Run("secret", func(t *testing.T) { testKeysOfLeasesExpire(t, redisstore.WithSecret([]byte("pepper"))) })
}

func testKeysOfLeasesExpire(t *testing.T, opts ...redisstore.Option) {
	server := redistest.Start(t)
	client, hook := server.Client(), new(scriptKeys)
	client.AddHook(hook)
	direct := server.Client()
	s := newStore(t, client, append(opts, redisstore.WithPrefix("shop"))...)
	seen := 0
	check := func(step string) {
		t.Helper()
		var record, others time.Duration
		for _, key := range keysOf(t, direct, "*") {
			seen++
			ttl := direct.PTTL(ctx(), key).Val()
			switch {
			case strings.HasSuffix(key, ":ljobs"):
				record = ttl
			case !strings.HasSuffix(key, "}x"):
				others = max(others, ttl)
			}
			if ttl <= 0 || ttl > 3*time.Hour {
				t.Errorf("%s: %s lives for %v", step, key, ttl)
			}
			if !strings.HasPrefix(key, "shop:e:{") {
				t.Errorf("%s: %s is not a lease's", step, key)
			}
		}
		if record < time.Hour-time.Minute || record <= others {
			t.Errorf("%s: the record lives for %v, and others for %v", step, record, others)
		}
		if strings.Contains(step, "queue") && others < 30*time.Second {
			t.Errorf("%s: the queue lives for %v", step, others)
		}
	}
	writer, reader, next := newClaim("k", "writer"), newClaim("k", "reader").shared(), newClaim("k", "next")
	writer.gets(t, s, store.Granted)
	check("acquire")
	w := reader.waitsIn(t, s)
	next.queued().gets(t, s, store.Queued)
	check("queue")
	held, err := writer.ttl(time.Hour).renew(s)
	wantOwned(t, "renew", held, err)
	check("renew with a queue")
	held, err = s.DowngradeLease(ctx(), writer.ref(), 1)
	wantOwned(t, "downgrade", held, err)
	check("downgrade with a queue")
	w.granted(t, 5*time.Second)
	check("await with a queue")
	held, err = reader.renew(s)
	wantOwned(t, "renew", held, err)
	check("renew of one of two with a queue")
	writer.ends(t, s, true)
	reader.ends(t, s, true)
	check("release to the next")
	for i, process := range []*redisstore.Store{newStore(t, direct, append(opts, redisstore.WithPrefix("shop"))...), s} {
		waiter := newClaim("k", fmt.Sprint("waiter ", i)).queued()
		waiter.gets(t, process, store.Queued)
		check("queue behind a grant that was pushed")
		waiter.ends(t, process, false)
	}
	next.ends(t, s, true)
	check("release")
	writer, late := newClaim("k", "another writer"), newClaim("k", "late").queued().ttl(50*time.Millisecond)
	writer.gets(t, s, store.Granted)
	late.gets(t, s, store.Queued)
	writer.ends(t, s, true) // the grant to the waiter runs out, since no call awaits it
	for _, step := range []string{"acquire after a grant that ran out", "and again"} {
		next = newClaim("k", step)
		eventually(t, 5*time.Second, step, func() bool {
			reply, err := next.acquire(s)
			return err == nil && reply.Outcome == store.Granted
		})
		check(step)
		next.ends(t, s, true)
	}
	tombstoned(t, s, "k").gets(t, s, store.Withdrawn)
	check("tombstone")
	must(t, direct.FlushAll(ctx()).Err())
	must(t, s.RaiseFence(ctx(), store.LockKind+"jobs", "raised", time.Now().Add(time.Minute).UnixMicro()))
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

// The record and the queue live as long as the longest lease, also if that is longer than theirs.
func TestALongLeaseOutlivesTheQueue(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	newClaim("k", "holder").shared().ttl(4*time.Hour).gets(t, s, store.Granted)
	newClaim("k", "another").shared().gets(t, s, store.Granted)
	newClaim("k", "waiter").queued().gets(t, s, store.Queued)
	if keys := keysOf(t, server.Client(), "*"); len(keys) != 4 {
		t.Errorf("keys %q", keys)
	}
	for _, key := range keysOf(t, server.Client(), "*") {
		if ttl := server.Client().PTTL(ctx(), key).Val(); ttl < 4*time.Hour-time.Minute {
			t.Errorf("%s lives for %v", key, ttl)
		}
	}
}

// A hold alone, and a lock that was released, are one string.
func TestALoneHoldIsTheRecord(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	only := func(what string) {
		t.Helper()
		if keys := keysOf(t, direct, "*"); len(keys) != 1 || direct.Type(ctx(), keys[0]).Val() != "string" {
			t.Errorf("%s: keys %q, want one string", what, keys)
		}
	}
	c, waiter := newClaim("k", "holder"), newClaim("k", "waiter").queued()
	c.gets(t, s, store.Granted)
	only("held")
	waiter.gets(t, s, store.Queued)
	if keys := keysOf(t, direct, "*"); len(keys) != 4 {
		t.Errorf("with a waiter: keys %q", keys)
	}
	waiter.ends(t, s, false)
	only("held again")
	c.ends(t, s, true)
	only("released")
	onlyRecords(t, direct)
	must(t, direct.FlushAll(ctx()).Err())
	permit := newPermit("k", "holder", 1, 2)
	permit.gets(t, s, store.Granted)
	only("a permit")
	permit.ends(t, s, true)
	if keys := direct.Keys(ctx(), "*").Val(); len(keys) != 0 {
		t.Errorf("a semaphore that nobody uses has %q", keys)
	}
}

func TestASecretHidesTheKeysOfLocks(t *testing.T) {
	testpace.Parallel(t)
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
	listed := 0
	for state, err := range hidden.ListLeases(ctx(), store.LockKind+"jobs") {
		listed++
		if err != nil || len(state.Key) != 22 || len(state.Holders) != 1 || state.Waiting != 2 {
			t.Errorf("listed %+v, %v; want the hash of the key", state, err)
		}
	}
	if listed != 1 {
		t.Errorf("listed %d", listed)
	}
	if state, err := hidden.InspectLease(ctx(), store.LockKind+"jobs", "SECRET"); err != nil || state.Key != "SECRET" {
		t.Errorf("inspected %+v, %v", state, err)
	}
	newClaim("SECRET", "d").gets(t, open, store.Granted)
}

func TestKeysOfAnotherTypeAreLeftAlone(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	for _, suffix := range []string{":ljobs", "o", "i", "p", "x"} {
		t.Run(suffix, func(t *testing.T) {
			must(t, direct.FlushAll(ctx()).Err())
			s := newStore(t, direct)
			good, bad := newClaim("good", "good"), newClaim("bad", "bad")
			good.gets(t, s, store.Granted)
			bad.gets(t, s, store.Granted)
			newClaim("bad", "waiter").queued().gets(t, s, store.Queued)
			tombstoned(t, s, "bad")
			key := stemOf(t, direct, "bad") + suffix
			if direct.Del(ctx(), key).Val() != 1 {
				t.Fatalf("no %s: the test does not test what it says", key)
			}
			must(t, direct.SAdd(ctx(), key, "member").Err())
			held, err := s.RenewLeases(ctx(), []store.LeaseRef{bad.ref(), good.ref()})
			if len(held) != 2 || held[0] || !held[1] {
				t.Errorf("renewed %v, %v; want the good one", held, err)
			}
			before := dump(t, direct)
			if held, _ := bad.renew(s); held {
				t.Error("renewed the bad one")
			}
			_, err = newClaim("bad", "other").queued().acquire(s)
			wantUnavailable(t, err, false)
			_, err = bad.release(s)
			wantUnavailable(t, err, false)
			if after := dump(t, direct); after != before {
				t.Errorf("an error changed something: %q, then %q", before, after)
			}
			for _, err := range s.ListLeases(ctx(), store.LockKind+"jobs") {
				if err != nil {
					t.Errorf("list: %v", err)
				}
			}
			good.ends(t, s, true)
		})
	}
}

// A lone hold does not need the other keys. Another request reports the damaged one before it has
// changed anything.
func TestALoneHoldAmongKeysOfAnotherType(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, direct)
	for _, suffix := range []string{"o", "i", "p"} {
		t.Run(suffix, func(t *testing.T) {
			must(t, direct.FlushAll(ctx()).Err())
			c := newClaim("k", "holder")
			c.gets(t, s, store.Granted)
			must(t, direct.SAdd(ctx(), stemOf(t, direct, "k")+suffix, "member").Err())
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

// A text that is no record does not prevent a grant.
func TestADamagedRecord(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, direct)
	for _, text := range []string{
		"", "x", "L", "L1", "L15:0:", "L11790000000000000:0:short", "L31790000000000000:0:", "L31790000000000000:0:1:2:3:",
		"L01790000000000000", "L41790000000000000:0:1", "L9:0:", "Lf1790000000000000:9:",
	} {
		t.Run(text, func(t *testing.T) {
			key := "k" + text
			damage := func() {
				must(t, direct.Set(ctx(), stemOf(t, direct, key)+":ljobs", text, time.Minute).Err())
			}
			c, next, queued := newClaim(key, "holder"), newClaim(key, "next"), newClaim(key, "queued").queued()
			c.gets(t, s, store.Granted)
			damage()
			if held, err := c.renew(s); held || err != nil {
				t.Errorf("renewed %v, %v", held, err)
			}
			for _, err := range s.ListLeases(ctx(), store.LockKind+"jobs") {
				if err != nil {
					t.Errorf("list: %v", err)
				}
			}
			c.ends(t, s, false)
			next.gets(t, s, store.Granted)
			damage()
			next.gets(t, s, store.Granted)
			damage()
			queued.gets(t, s, store.Granted)
			queued.ends(t, s, true)
		})
	}
}

// A hold that is alone behaves as one beside waiters does.
func TestALoneHoldBehavesLikeOthers(t *testing.T) {
	testpace.Parallel(t)
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
		},
		"inspect": func(t *testing.T, c claim) {
			c.held(t, s, true)
			other := newClaim(c.Key, "x"+c.ID)
			other.fence = c.fence
			other.held(t, s, false)
			if held, err := other.renew(s); held || err != nil {
				t.Errorf("renew another: %v, %v", held, err)
			}
			stale := store.LeaseRef{Name: c.Name, Key: c.Key, ID: c.ID, Fence: c.fence.Load() - 1, TTL: time.Minute}
			if held, err := s.RenewLeases(ctx(), []store.LeaseRef{stale}); held[0] || err != nil {
				t.Errorf("renew another fence: %v, %v", held, err)
			}
		},
	}
	names := slices.Sorted(maps.Keys(steps))
	for n := range 4 * 4 * 4 { // every order of three of them
		c := newClaim("k", "holder of the first")
		c.Label = "somebody: of a\nkind"
		first := c.gets(t, s, store.Granted)
		for _, i := range []int{n % 4, n / 4 % 4, n / 16} {
			steps[names[i]](t, c)
		}
		var states []store.LeaseState
		for state, err := range s.ListLeases(ctx(), c.Name) {
			must(t, err)
			states = append(states, state)
		}
		if len(states) != 1 {
			t.Fatalf("listed %+v", states)
		}
		state := states[0]
		if state.Key != "k" || state.Waiting != 0 || state.InUse != c.Weight || len(state.Holders) != 1 ||
			state.Holders[0].Fence != first.Fence || state.Holders[0].LastFence != first.LastFence || state.Holders[0].Label != c.Label {
			t.Fatalf("listed %+v, want fence %d", state, first.Fence)
		}
		c.ends(t, s, true)
		c.ends(t, s, true) // sent twice
		onlyRecords(t, server.Client())
		must(t, server.Client().FlushAll(ctx()).Err())
	}
}

func TestLocksWhenMemoryIsFull(t *testing.T) { eachForm(t, locksWhenMemoryIsFull) }

func locksWhenMemoryIsFull(t *testing.T, server *redistest.Server, client *redis.Client) {
	direct := server.Client()
	log := new(logbook)
	s := newStore(t, client, log.option())
	released, renewed, downgraded, revoked := newClaim("a", "a"), newClaim("b", "b"), newClaim("c", "c"), newClaim("d", "d")
	released.gets(t, s, store.Granted)
	renewed.gets(t, s, store.Granted)
	downgraded.gets(t, s, store.Granted)
	grant := revoked.gets(t, s, store.Granted)
	w := newClaim("a", "next").waitsIn(t, s)
	configure(t, direct, "maxmemory", "1")
	for range 10 { // twice what trips the breaker
		_, err := newClaim("new", "new").acquire(s)
		wantUnavailable(t, err, false)
	}
	for range 2 {
		held, err := renewed.renew(s)
		wantOwned(t, "renew", held, err)
		held, err = s.DowngradeLease(ctx(), downgraded.ref(), 1)
		wantOwned(t, "downgrade", held, err)
	}
	released.ends(t, s, true)
	w.granted(t, 5*time.Second)
	held, err := w.renew(s)
	wantOwned(t, "renew", held, err)
	done, err := s.RevokeLease(ctx(), revoked.Name, "d", grant.Fence)
	wantOwned(t, "revoke", done, err)
	renewed.held(t, s, true)
	if state, err := s.InspectLease(ctx(), renewed.Name, "c"); err != nil || len(state.Holders) != 1 || state.InUse != 1 {
		t.Errorf("inspect: %+v, %v", state, err)
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
}

func TestEvictionIsRefusedByLocks(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	configure(t, server.Client(), "maxmemory-policy", "volatile-ttl")
	_, err := newClaim("k", "a").acquire(newStore(t, server.Client()))
	wantUnavailable(t, err, false)
	newClaim("k", "b").gets(t, newStore(t, server.Client(), redisstore.AllowEviction()), store.Granted)
}

func TestFences(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	c := newClaim("k", "a")
	first := c.gets(t, s, store.Granted)
	if d := time.Since(time.UnixMicro(first.Fence)); d < 0 || d > time.Minute {
		t.Errorf("fence %d is not of now", first.Fence)
	}
	if first.LastFence != first.Fence+15 {
		t.Errorf("fences %d to %d, want 16", first.Fence, first.LastFence)
	}
	c.ends(t, s, true)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	must(t, s.RaiseFence(ctx(), c.Name, "k", ahead))
	must(t, s.RaiseFence(ctx(), c.Name, "k", 5)) // lowers nothing
	c = newClaim("k", "b")
	second := c.gets(t, s, store.Granted)
	if second.Fence != ahead+1 || second.LastFence != second.Fence {
		t.Errorf("fences %d to %d, want %d only, since it is ahead of the clock", second.Fence, second.LastFence, ahead+1)
	}
	for _, step := range []func(){
		func() {},
		func() { newClaim("k", "x").gets(t, s, store.Taken) },
		func() { _, _ = c.renew(s) },
		func() { c.ends(t, s, true) },
	} {
		step()
		for _, key := range keysOf(t, server.Client(), "*:ljobs") {
			if ttl := server.Client().PTTL(ctx(), key).Val(); ttl < 2*time.Hour-time.Minute {
				t.Errorf("the fence lives for %v, less than its lead and an idle record", ttl)
			}
		}
	}
	if err := s.RaiseFence(ctx(), c.Name, "k", 1<<60); err == nil {
		t.Error("raised beyond what a script can count")
	}
	must(t, server.Client().FlushAll(ctx()).Err())
	if third := newClaim("k", "c").gets(t, s, store.Granted); third.Fence <= first.LastFence {
		t.Errorf("fence %d after %d and a flush", third.Fence, first.LastFence)
	}
}

func TestUptime(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	if up, err := s.Uptime(ctx()); err != nil || up < 0 || up > time.Minute {
		t.Errorf("%v, %v", up, err)
	}
	server.Stop()
	_, err := s.Uptime(ctx())
	wantUnavailable(t, err, false)
}
