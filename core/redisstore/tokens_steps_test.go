package redisstore_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// tokensAt returns a request for n tokens of a bucket of 100, of which one comes back in each
// interval.
func tokensAt(interval time.Duration, key string, n int64) store.TokenRequest {
	return store.TokenRequest{Limiter: "api", Key: key, Charges: []store.Charge{{
		Cost: time.Duration(n) * interval, Capacity: 100 * interval, Overdraft: 100 * interval, Interval: interval,
	}}}
}

func hourly(key string, n int64) store.TokenRequest { return tokensAt(time.Hour, key, n) }

func takes(t *testing.T, s store.Buckets, r store.TokenRequest, more ...store.TokenRequest) store.TakeReply {
	t.Helper()
	reply, err := s.TakeTokens(ctx(), r, more...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

func settled(t *testing.T, s store.Buckets, r store.TokenRequest) store.TakeReply {
	t.Helper()
	reply, err := s.SettleTokens(ctx(), r)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// wantUsed checks how many tokens of a bucket are used. Few come back during a test.
func wantUsed(t *testing.T, s store.Buckets, key string, want float64) {
	t.Helper()
	reply := takes(t, s, hourly(key, 0))
	if used := reply.Debts.At(0).Hours(); used > want+0.001 || used < want-0.05 {
		t.Errorf("%v tokens of %q are used, want %v", used, key, want)
	}
}

// Decisions, settlements and requests for what is left share batches, and each is as it would be
// alone, also if the interval changes among them.
func TestDecisionsOfAllKindsInABatch(t *testing.T) {
	t.Parallel()
	c := newDecisionBatch(t, redistest.Start(t))
	atMost := hourly("k", 1)
	atMost.AtMost = 3
	takes(t, c.store, hourly("k", 20))
	takes(t, c.store, hourly("one by one", 5))
	var decisions []func()
	take := func(r store.TokenRequest, taken int64) func() {
		return func() {
			if reply, err := c.store.TakeTokens(ctx(), r); err != nil || !reply.Allowed || reply.Taken != taken {
				t.Errorf("%+v: %+v, %v", r, reply, err)
			}
		}
	}
	settle := func(r store.TokenRequest) func() {
		return func() {
			if reply, err := c.store.SettleTokens(ctx(), r); err != nil || !reply.Allowed {
				t.Errorf("%+v: %+v, %v", r, reply, err)
			}
		}
	}
	for range 10 {
		decisions = append(decisions, take(hourly("k", 2), 0), settle(hourly("k", 3)), settle(hourly("k", -4)), take(atMost, 3))
	}
	before := c.proxy.Seen("evalsha")
	c.ask(decisions...)
	if calls := c.proxy.Seen("evalsha") - before; calls > 24 {
		t.Errorf("%d calls for %d decisions", calls, len(decisions))
	}
	wantUsed(t, c.store, "k", 60)

	// These are all decided together, as they are quick.
	decisions = nil
	for range 20 {
		decisions = append(decisions,
			take(tokensAt(time.Hour, "one by one", 2), 0), take(tokensAt(time.Minute, "one by one", 2), 0),
			settle(tokensAt(time.Minute, "one by one", 1)), settle(tokensAt(time.Hour, "one by one", -1)))
	}
	c.ask(decisions...)
	wantUsed(t, c.store, "one by one", 85)
}

// A bucket that is full again is removed, by a call or by a batch.
func TestABucketThatIsGivenBackIsRemoved(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct, c := server.Client(), newDecisionBatch(t, server)
	for _, n := range []int{1, 40} {
		must(t, direct.FlushAll(ctx()).Err())
		takes(t, c.store, hourly("k", int64(n)))
		key := onlyKey(t, direct)
		var give []func()
		for range n {
			give = append(give, func() { settled(t, c.store, hourly("k", -1)) })
		}
		if give[0](); n > 1 {
			c.ask(give[1:]...)
		}
		if direct.Exists(ctx(), key).Val() != 0 {
			t.Errorf("it has %q", direct.Get(ctx(), key).Val())
		}
	}
}

// Several keys are charged in one call, all or none, and the charges to a bucket add up.
func TestSeveralKeysInOneDecision(t *testing.T) {
	t.Parallel()
	_, proxy, _, s := behindProxy(t, time.Second)
	takes(t, s, hourly("warm", 1))
	before := proxy.Seen("evalsha")
	reply := takes(t, s, hourly("user", 60), hourly("team", 90))
	if calls := proxy.Seen("evalsha") - before; calls != 1 || !reply.Allowed {
		t.Errorf("%+v with %d calls", reply, calls)
	}
	if reply := takes(t, s, hourly("user", 20), hourly("team", 11)); reply.Allowed {
		t.Errorf("allowed %+v", reply)
	}
	if reply := takes(t, s, hourly("user", 20), hourly("other", 1), hourly("user", 21)); reply.Allowed {
		t.Errorf("allowed %+v", reply)
	}
	wantUsed(t, s, "user", 60)
	wantUsed(t, s, "other", 0)
	if reply := takes(t, s, hourly("user", 20), hourly("other", 1), hourly("user", 20)); !reply.Allowed ||
		reply.Debts.At(0) != reply.Debts.At(2) {
		t.Errorf("denied, or the debts differ: %+v", reply)
	}
	wantUsed(t, s, "user", 100)
	wantUsed(t, s, "other", 1)
}

// On a Cluster the homes of keys decide whether they can be charged together, not the luck of their
// slots.
func TestHomesOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client, _ := cluster.ProxiedClient()
	s := newStore(t, client, redisstore.WithTimeout(5*time.Second))
	home := store.BucketHome{Limiter: "api", Key: "team"}
	within := func(key string, n int64) store.TokenRequest {
		r := hourly(key, n)
		r.Home = &home
		return r
	}
	for range 2 {
		if reply := takes(t, s, hourly("team", 1), within("ann", 2), within("bob", 3)); !reply.Allowed {
			t.Errorf("denied %+v", reply)
		}
	}
	if reply := takes(t, s, hourly("team", 1), within("ann", 97)); reply.Allowed {
		t.Errorf("allowed %+v", reply)
	}
	for key, want := range map[string]time.Duration{"ann": 4 * time.Hour, "bob": 6 * time.Hour} {
		reply := takes(t, s, within(key, 0))
		if used := reply.Debts.At(0); used > want || used < want-time.Minute {
			t.Errorf("%s owes %v", key, used)
		}
	}
	wantUsed(t, s, "team", 2)
	// The charges of concurrent decisions go together, whatever their homes.
	var all sync.WaitGroup
	for i := range 60 {
		all.Go(func() {
			r := []store.TokenRequest{hourly("team", 1), within("ann", 1)}
			if i%3 == 0 {
				r = []store.TokenRequest{hourly(string(rune('A'+i/3)), 1)}
			}
			if reply, err := s.TakeTokens(ctx(), r[0], r[1:]...); err != nil || !reply.Allowed {
				t.Errorf("%+v, %v", reply, err)
			}
		})
	}
	all.Wait()
	wantUsed(t, s, "team", 42)
	for _, other := range []store.TokenRequest{hourly("ann", 1), hourly("other", 1)} {
		if _, err := s.TakeTokens(ctx(), hourly("team", 1), other); !errors.Is(err, store.ErrManySlots) {
			t.Errorf("two homes: %v", err)
		}
	}
	must(t, s.HoldTokens(ctx(), within("ann", 0), time.Hour))
	if reply := takes(t, s, hourly("team", 1), within("ann", 1)); reply.Allowed || reply.Held < 59*time.Minute {
		t.Errorf("a member is held: %+v", reply)
	}
	must(t, s.ResetTokens(ctx(), within("ann", 0)))
	if reply := takes(t, s, within("ann", 100)); !reply.Allowed {
		t.Errorf("after a reset: %+v", reply)
	}
}

// A bucket is kept for as long as it is held, whatever happens to its debt, and another process
// sees the hold with its next decision.
func TestAHoldOutlivesTheDebt(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, other := newStore(t, server.Client()), newStore(t, server.Client())
	takes(t, other, hourly("k", 1))
	must(t, s.HoldTokens(ctx(), hourly("k", 0), 10*time.Hour))
	must(t, s.HoldTokens(ctx(), hourly("k", 0), time.Hour)) // a shorter one changes nothing
	key := onlyKey(t, server.Client())
	held := func(when string) {
		t.Helper()
		if left := server.Client().PTTL(ctx(), key).Val(); left < 9*time.Hour {
			t.Errorf("%s it is kept for %v", when, left)
		}
		for name, s := range map[string]store.Buckets{"the same": s, "another": other} {
			if reply := takes(t, s, hourly("k", 1)); reply.Allowed || reply.Held < 9*time.Hour || reply.Held > 10*time.Hour {
				t.Errorf("%s %s process is answered %+v", when, name, reply)
			}
		}
	}
	held("with a debt")
	if reply := takes(t, s, hourly("k", 0)); !reply.Allowed || reply.Held < 9*time.Hour {
		t.Errorf("a peek: %+v", reply)
	}
	if reply := settled(t, s, hourly("k", -5)); !reply.Allowed || reply.Debts.At(0) != 0 || reply.Held < 9*time.Hour {
		t.Errorf("a settlement: %+v", reply)
	}
	held("without a debt")
	settled(t, s, hourly("k", 50))
	settled(t, s, tokensAt(time.Minute, "k", 1)) // which counts it at another interval
	held("at another interval")
	must(t, s.ResetTokens(ctx(), hourly("k", 0)))
	if reply := takes(t, s, hourly("k", 100)); !reply.Allowed {
		t.Errorf("after a reset: %+v", reply)
	}
	must(t, s.HoldTokens(ctx(), hourly("new", 0), time.Nanosecond)) // at least a µs
	must(t, s.HoldTokens(ctx(), hourly("new", 0), 0))
}

// A hold that is denied from the cache ends as it does in Redis.
func TestAHoldEnds(t *testing.T) {
	t.Parallel()
	_, proxy, _, s := behindProxy(t, time.Second)
	began, cached := time.Now(), 0 // the hold begins later, and its reply comes later still
	must(t, s.HoldTokens(ctx(), hourly("k", 0), 300*time.Millisecond))
	for {
		reply := takes(t, s, hourly("k", 1))
		if reply.Cached {
			cached++
		}
		if reply.Allowed {
			break
		}
		if reply.Held <= 0 || reply.Held > 300*time.Millisecond || time.Since(began) > 10*time.Second {
			t.Fatalf("after %v: %+v", time.Since(began), reply)
		}
	}
	if cached == 0 || time.Since(began) < 300*time.Millisecond || proxy.Seen("evalsha") > 10 {
		t.Errorf("%d denials from the cache in %v, and %d calls", cached, time.Since(began), proxy.Seen("evalsha"))
	}
}

// What is given back is not denied by this process any more.
func TestWhatIsGivenBackCanBeTaken(t *testing.T) {
	t.Parallel()
	s := newStore(t, redistest.Start(t).Client())
	takes(t, s, hourly("k", 100))
	for range 2 {
		takes(t, s, hourly("k", 1))
	}
	if reply := takes(t, s, hourly("k", 1)); !reply.Cached {
		t.Fatalf("not from the cache: %+v", reply)
	}
	if reply := takes(t, s, tokensAt(time.Hour+1, "k", 1)); reply.Cached {
		t.Errorf("another interval is denied from the cache: %+v", reply)
	}
	settled(t, s, hourly("k", 1))
	if reply := takes(t, s, hourly("k", 1)); reply.Allowed {
		t.Errorf("allowed: %+v", reply)
	}
	settled(t, s, hourly("k", -2))
	if reply := takes(t, s, hourly("k", 1)); !reply.Allowed {
		t.Errorf("denied: %+v", reply)
	}
}

// A settlement whose reply is lost is not sent again; a hold is.
func TestALostReplyOfASettlement(t *testing.T) {
	t.Parallel()
	_, proxy, _, s := behindProxy(t, time.Second)
	takes(t, s, hourly("k", 50))
	before := proxy.Seen("evalsha")
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	if _, err := s.SettleTokens(ctx(), hourly("k", -20)); !errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("SettleTokens: %v", err)
	}
	if calls := proxy.Seen("evalsha") - before; calls != 1 {
		t.Errorf("it was sent %d times", calls)
	}
	wantUsed(t, s, "k", 30)
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	must(t, s.HoldTokens(ctx(), hourly("k", 0), time.Hour))
	if reply := takes(t, s, hourly("k", 1)); reply.Held < 59*time.Minute || reply.Held > time.Hour {
		t.Errorf("held: %+v", reply)
	}
}

// A server that has lost its scripts settles once, and holds.
func TestSettlementsWithoutScripts(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	takes(t, s, hourly("k", 50))
	for _, f := range []func() error{
		func() error { _, err := s.SettleTokens(ctx(), hourly("k", -20)); return err },
		func() error { return s.HoldTokens(ctx(), hourly("k", 0), time.Hour) },
	} {
		must(t, server.Client().ScriptFlush(ctx()).Err())
		must(t, f())
	}
	if reply := takes(t, s, hourly("k", 1)); reply.Allowed || reply.Held == 0 {
		t.Errorf("not held: %+v", reply)
	}
	wantUsed(t, s, "k", 30)
}

// A key of another type is no bucket: whatever meets it fails, and changes nothing.
func TestSettlementsOfWhatIsNoBucket(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct, s := server.Client(), newStore(t, server.Client())
	takes(t, s, hourly("k", 50))
	key := onlyKey(t, direct)
	must(t, direct.Del(ctx(), key).Err())
	must(t, direct.HSet(ctx(), key, "f", "v").Err())
	_, err := s.SettleTokens(ctx(), hourly("k", -20))
	wantUnavailable(t, err, false)
	_, err = s.TakeTokens(ctx(), hourly("fine", 1), hourly("k", 1))
	wantUnavailable(t, err, false)
	if err := s.HoldTokens(ctx(), hourly("k", 0), time.Hour); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("HoldTokens: %v", err)
	}
	wantUsed(t, s, "fine", 0)
	if direct.HGet(ctx(), key, "f").Val() != "v" {
		t.Error("it was written")
	}
}
