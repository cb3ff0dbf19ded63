package redisstore_test

import (
	"errors"
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

func TestOperationsEndThoughMemoryIsFull(t *testing.T) {
	testpace.Parallel(t)
	for name, scope := range map[string]string{"": "", "in a scope": "alice"} {
		t.Run(name, func(t *testing.T) {
			eachForm(t, func(t *testing.T, server *redistest.Server, client *redis.Client) {
				operationsEndThoughMemoryIsFull(t, server, client, scope)
			})
		})
	}
}

func operationsEndThoughMemoryIsFull(t *testing.T, server *redistest.Server, client *redis.Client, scope string) {
	direct := server.Client()
	log := new(logbook)
	s := newStore(t, client, log.option())
	l := newLimiter(t, s)
	completed, small := newOp("completed").in(scope), newOp("small").in(scope)
	abandoned, marked := newOp("abandoned").in(scope), newOp("marked").in(scope)
	for _, o := range []op{completed, small, abandoned, marked} {
		o.started(t, s)
	}
	configure(t, direct, "maxmemory", "1")

	for range 10 { // twice what trips the breaker
		_, err := l.Allow(ctx(), "k")
		wantUnavailable(t, err, false)
	}
	_, err := newOp("new").in(scope).begin(s)
	wantUnavailable(t, err, false)

	for range 2 { // also sent twice
		owned, err := marked.mark(s)
		wantOwned(t, "mark", owned, err)
		owned, err = marked.renew(s)
		wantOwned(t, "renew", owned, err)
		owned, err = abandoned.abandon(s)
		wantOwned(t, "abandon", owned, err)
		owned, err = completed.settle(s, strings.Repeat("large", 10_000))
		wantOwned(t, "settle", owned, err)
		owned, err = s.SettleOperation(ctx(), store.SettleRequest{
			AttemptRef: small.ref(), Fingerprint: small.fingerprint, Number: 1, State: store.Unknown, Retention: 1e9,
		})
		wantOwned(t, "settle as unknown", owned, err)
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}

	configure(t, direct, "maxmemory", "0")
	reply, err := completed.by("other").begin(s)
	if err != nil || reply.Outcome != store.Settled || reply.State != store.NotRetained || reply.Status != 201 || len(reply.Data) != 0 {
		t.Errorf("got %+v, %v; want a result that was not retained, with its status", reply, err)
	}
	abandoned.by("other").started(t, s)
	if got := remaining(t, direct, "k"); got != 100 {
		t.Errorf("%d tokens remain of 100: a refused charge was made", got)
	}
}

// A server with full memory replies about operations that it has. Only a step that has to write
// fails, with store.ErrFull.
func TestAFullServerReadsOperations(t *testing.T) {
	testpace.Parallel(t)
	for name, scope := range map[string]string{"": "", "in a scope": "alice"} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			direct := server.Client()
			log := new(logbook)
			s := newStore(t, server.Client(), log.option())
			began := func(name string) op {
				o := newOp(name).in(scope)
				o.started(t, s)
				return o
			}
			running, done, unknown, marked, abandoned := began("running"), began("done"), began("unknown"), began("marked"), began("abandoned")
			owned, err := done.settle(s, "result")
			wantOwned(t, "settle", owned, err)
			owned, err = marked.mark(s)
			wantOwned(t, "mark", owned, err)
			owned, err = abandoned.abandon(s)
			wantOwned(t, "abandon", owned, err)
			owned, err = s.SettleOperation(ctx(), store.SettleRequest{
				AttemptRef: unknown.ref(), Fingerprint: unknown.fingerprint, Number: 1, State: store.Unknown, Retention: time.Hour,
			})
			wantOwned(t, "settle as unknown", owned, err)
			for _, o := range []op{newOp("dead").in(scope), newOp("clean").in(scope)} {
				if _, err := s.BeginOperation(ctx(), store.BeginRequest{
					AttemptRef: o.ref(), Fingerprint: o.fingerprint, Lease: 10 * time.Millisecond, Retention: time.Hour,
				}); err != nil {
					t.Fatal(err)
				}
			}
			owned, err = newOp("clean").in(scope).mark(s)
			wantOwned(t, "mark", owned, err)
			eventually(t, 5*time.Second, "a lease ends", func() bool {
				reply, err := newOp("dead").in(scope).by("other").begin(s)
				return err == nil && reply.Outcome == store.Undecided
			})
			configure(t, direct, "maxmemory", "1")
			mismatched := done.by("other")
			mismatched.fingerprint = "g" + mismatched.fingerprint[1:]
			for range 10 { // twice what trips the breaker
				for want, o := range map[store.BeginOutcome]op{
					store.Busy: running.by("other"), store.Started: running, store.Settled: done.by("other"),
					store.Mismatched: mismatched, store.Undecided: newOp("dead").in(scope).by("other"), store.Refused: abandoned,
				} {
					if reply, err := o.begin(s); err != nil || reply.Outcome != want || want == store.Settled && string(reply.Data) != "result" {
						t.Errorf("begin: %+v, %v, want outcome %d", reply, err, want)
					}
				}
				if reply, err := unknown.by("other").begin(s); err != nil || reply.State != store.Unknown {
					t.Errorf("of an unknown outcome: %+v, %v", reply, err)
				}
				for _, o := range []op{newOp("new").in(scope), newOp("clean").in(scope).by("other")} {
					if _, err := o.begin(s); !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnconfirmed) {
						t.Errorf("a new attempt: %v, want store.ErrFull", err)
					}
				}
			}
			if log.has(tripped) {
				t.Error("the breaker opened")
			}
			configure(t, direct, "maxmemory", "0")
			newOp("new").in(scope).started(t, s)
			if keys := lasting(t, direct); len(keys) > 0 {
				t.Errorf("%q do not expire", keys)
			}
		})
	}
}

// Steps that change nothing work though memory is full, also for a process that has just started.
func TestStepsThatOnlyReadWorkThoughMemoryIsFull(t *testing.T) {
	testpace.Parallel(t)
	eachForm(t, func(t *testing.T, server *redistest.Server, client *redis.Client) {
		direct := server.Client()
		before := newStore(t, server.Client())
		used, held, permit := newLimiter(t, before), newClaim("held", "holder"), newPermit("full", "holder", 1, 1)
		if d, err := used.AllowN(ctx(), "used up", 100); err != nil || !d.Allowed {
			t.Fatalf("charge: %+v, %v", d, err)
		}
		held.gets(t, before, store.Granted)
		newClaim("shared", "a").shared().gets(t, before, store.Granted)
		newClaim("shared", "b").shared().gets(t, before, store.Granted)
		permit.gets(t, before, store.Granted)
		newPermit("heavy", "holder", 3, 5).gets(t, before, store.Granted)
		latch := store.LatchRequest{Name: "open", Count: 1, TTL: time.Hour}
		if n, err := before.CountDownLatch(ctx(), latch, "a"); n != 1 || err != nil {
			t.Fatalf("count down: %d, %v", n, err)
		}
		done := newOp("done")
		done.started(t, before)
		owned, err := done.settle(before, "result")
		wantOwned(t, "settle", owned, err)
		configure(t, direct, "maxmemory", "1")

		log := new(logbook)
		s := newStore(t, client, log.option(), redisstore.WithoutDenialCache())
		l := newLimiter(t, s)
		full := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnconfirmed) {
				t.Errorf("%s: %v, want store.ErrFull", what, err)
			}
		}
		for range 10 { // twice what trips the breaker
			if d, err := l.Peek(ctx(), "used up"); err != nil || d.Limits()[0].Remaining != 0 {
				t.Errorf("peek: %+v, %v", d, err)
			}
			if d, err := l.Peek(ctx(), "new"); err != nil || d.Limits()[0].Remaining != 100 {
				t.Errorf("peek at a new key: %+v, %v", d, err)
			}
			if d, err := l.Allow(ctx(), "used up"); err != nil || d.Allowed {
				t.Errorf("a denial: %+v, %v", d, err)
			}
			_, err := l.Allow(ctx(), "new")
			full("a charge", err)
			if reply, err := done.by("other").begin(s); err != nil || string(reply.Data) != "result" {
				t.Errorf("replay: %+v, %v", reply, err)
			}
			newClaim("held", "tries").gets(t, s, store.Taken)
			newClaim("held", "tries").shared().gets(t, s, store.Taken)
			newClaim("shared", "tries").gets(t, s, store.Taken)
			newPermit("full", "tries", 1, 1).gets(t, s, store.Taken)
			newPermit("heavy", "tries", 3, 5).gets(t, s, store.Taken)
			_, err = newClaim("new", "tries").acquire(s)
			full("a lock", err)
			_, err = newPermit("new", "tries", 1, 1).acquire(s)
			full("a permit", err)
			held.held(t, s, true)
			permit.inUse(t, s, 1)
			found := 0
			for _, name := range []string{held.Name, permit.Name} {
				for _, err := range s.ListLeases(ctx(), name) {
					must(t, err)
					found++
				}
			}
			if found != 4 {
				t.Errorf("%d locks and semaphores listed, want 4", found)
			}
			if n, err := s.InspectLatch(ctx(), latch); n != 1 || err != nil {
				t.Errorf("inspect a latch: %d, %v", n, err)
			}
			if n, err := s.CountDownLatch(ctx(), latch, "a"); n != 1 || err != nil {
				t.Errorf("count down again: %d, %v", n, err)
			}
			must(t, s.AwaitLatch(ctx(), latch))
			_, err = s.CountDownLatch(ctx(), latch, "b")
			full("a participant", err)
		}
		together(200, func(i int) {
			key, want := "used up", int64(0)
			if i%2 == 0 {
				key, want = strconv.Itoa(i), 100
			}
			if d, err := l.Peek(ctx(), key); err != nil || d.Limits()[0].Remaining != want {
				t.Errorf("peek at %s: %+v, %v", key, d, err)
			}
			if d, err := l.Allow(ctx(), key); i%2 == 0 {
				full("a charge", err)
			} else if err != nil || d.Allowed {
				t.Errorf("a denial: %+v, %v", d, err)
			}
		})
		if log.has(tripped) {
			t.Error("the breaker opened")
		}
		held.ends(t, s, true)
		permit.ends(t, s, true)
		configure(t, direct, "maxmemory", "0")
		if d, err := l.Allow(ctx(), "new"); err != nil || !d.Allowed || d.Limits()[0].Remaining != 99 {
			t.Errorf("afterwards: %+v, %v", d, err)
		}
		if keys := lasting(t, direct); len(keys) > 0 {
			t.Errorf("%q do not expire", keys)
		}
	})
}

// lasting returns the keys that do not expire.
func lasting(t *testing.T, server *redis.Client) (found []string) {
	t.Helper()
	keys, err := server.Keys(ctx(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if ttl := server.PTTL(ctx(), key).Val(); ttl < 0 && ttl != -2 { // -2: it is gone
			found = append(found, key)
		}
	}
	return found
}

// If the counts of a scope are lost or damaged, attempts still end, and every key expires.
func TestLostCountsOfAScope(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	counts := "lk:g:{" + newOp("any").in("alice").scope + "}"
	for name, c := range map[string]struct {
		damage func() error
		wrong  bool
	}{
		"deleted":  {func() error { return direct.Del(ctx(), counts).Err() }, false},
		"a string": {func() error { return direct.Set(ctx(), counts, "damage", time.Hour).Err() }, true},
		"of no slice": {func() error {
			return direct.HSet(ctx(), counts, "x", "y", "123", "1e300", "99999999999999", "nan").Err()
		}, false},
		"all gone": {func() error { return direct.FlushAll(ctx()).Err() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := direct.FlushAll(ctx()).Err(); err != nil {
				t.Fatal(err)
			}
			began := func(name string) op {
				o := newOp(name).in("alice")
				o.started(t, s)
				return o
			}
			settled, small, abandoned, renewed := began("settled"), began("small"), began("abandoned"), began("renewed")
			if err := c.damage(); err != nil {
				t.Fatal(err)
			}
			if name != "all gone" {
				owned, err := renewed.renew(s)
				wantOwned(t, "renew", owned, err)
				owned, err = renewed.mark(s)
				wantOwned(t, "mark", owned, err)
				owned, err = abandoned.abandon(s)
				wantOwned(t, "abandon", owned, err)
			} else if owned, err := abandoned.abandon(s); err != nil || owned {
				t.Errorf("abandon: %v, %v", owned, err)
			}
			owned, err := settled.settle(s, "result")
			wantOwned(t, "settle", owned, err)
			owned, err = small.settle(s, "")
			wantOwned(t, "settle without a result", owned, err)
			if reply, err := settled.by("other").begin(s); err != nil || string(reply.Data) != "result" {
				t.Errorf("the result is %+v, %v", reply, err)
			}
			if keys := lasting(t, direct); len(keys) > 0 {
				t.Errorf("%q do not expire", keys)
			}
			if c.wrong { // until it is deleted, or expires
				_, err := newOp("new").in("alice").begin(s)
				wantUnavailable(t, err, false)
				newOp("new").in("bob").started(t, s)
				if err := direct.Del(ctx(), counts).Err(); err != nil {
					t.Fatal(err)
				}
			}
			newOp("new").in("alice").started(t, s)
			if keys := lasting(t, direct); len(keys) > 0 {
				t.Errorf("%q do not expire", keys)
			}
		})
	}
}

func TestEvictionIsRefusedByGuardsOnly(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	configure(t, direct, "maxmemory-policy", "allkeys-lru")
	log := new(logbook)
	s := newStore(t, server.Client(), log.option())
	l, o := newLimiter(t, s), newOp("evicted")
	for range 10 { // twice what trips the breaker
		_, err := o.begin(s)
		wantUnavailable(t, err, false)
		if err == nil || !strings.Contains(err.Error(), "allkeys-lru") || !strings.Contains(err.Error(), "AllowEviction") {
			t.Fatalf("%v names neither the setting nor the option", err)
		}
		if _, err := l.Allow(ctx(), "k"); err != nil {
			t.Errorf("a token bucket: %v", err)
		}
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	o.started(t, newStore(t, server.Client(), redisstore.AllowEviction()))
	configure(t, direct, "maxmemory-policy", "noeviction")
	newOp("kept").started(t, s)
}

// Managed services forbid CONFIG, and most of them evict by default.
func TestEvictionIsRefusedWhereConfigIsForbidden(t *testing.T) {
	testpace.Parallel(t)
	client := app(t, "-config")
	if err := client.ConfigGet(ctx(), "maxmemory-policy").Err(); !redis.HasErrorPrefix(err, "NOPERM") {
		t.Fatalf("CONFIG GET: %v, want it forbidden", err)
	}
	newOp("kept").started(t, newStore(t, client))
	client = app(t, "-config", "--maxmemory-policy", "volatile-lru")
	_, err := newOp("evicted").begin(newStore(t, client))
	if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "volatile-lru") {
		t.Errorf("begin: %v, want volatile-lru refused", err)
	}
}

func TestGuardsWarnIfTheEvictionPolicyIsUnknown(t *testing.T) {
	testpace.Parallel(t)
	for name, client := range map[string]*redis.Client{
		"forbidden": app(t, "-info"), "not reported": dial(t, miniredis.RunT(t).Addr(), time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			log := new(logbook)
			newOp("secret").started(t, newStore(t, client, log.option()))
			if !log.has("maxmemory-policy") {
				t.Error("no warning")
			}
		})
	}
}
