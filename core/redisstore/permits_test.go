package redisstore_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func TestPermitsAcrossProcesses(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		a, b := newStore(t, client), newStore(t, client)
		light, heavy := newRequest("k", "light", 1, 3), newRequest("k", "heavy", 2, 3)
		light.gets(t, a, store.Granted)
		heavy.gets(t, b, store.Granted)
		inUse(t, a, "k", 3)
		first, second := newRequest("k", "first", 2, 3).queued(), newRequest("k", "second", 1, 3).queued()
		if reply := first.gets(t, a, store.Queued); reply.InUse != 3 || reply.Waiting != 0 || reply.Remaining <= 29*time.Second {
			t.Errorf("queued: %+v", reply)
		}
		second.gets(t, b, store.Queued)
		w1, w2 := first.await(t, a), second.await(t, b)
		subscribed(t, client, 2)
		light.ends(t, a, true)
		newRequest("k", "greedy", 1, 3).gets(t, a, store.Taken) // there is room for it, but others were first
		w1.waits(t)
		w2.waits(t)
		heavy.ends(t, b, true)
		w1.granted(t, 900*time.Millisecond)
		w2.granted(t, 900*time.Millisecond)
		inUse(t, b, "k", 3)
		first.ends(t, a, true)
		second.ends(t, b, true)
		inUse(t, b, "k", 0)
	})
}

// A process that has ended delays other waiters for no longer than its reservation.
func TestADeadProcessIsPassedOver(t *testing.T) {
	for name, ghosts := range map[string][]int{"one": {1}, "a light and a heavy one": {1, 2}} {
		t.Run(name, func(t *testing.T) { overlook(t, ghosts) })
	}
}

// overlook checks that a waiter for the greatest of the weights overtakes waiters of a dead
// process.
func overlook(t *testing.T, weights []int) {
	client := redistest.Start(t).Client()
	alive, dead := newStore(t, client), newStore(t, client)
	most := slices.Max(weights)
	holder := newRequest("k", "holder", most, most)
	holder.gets(t, alive, store.Granted)
	newRequest("k", "knock", 1, most).gets(t, dead, store.Taken)
	subscribed(t, client, 2)
	var ghosts []request
	for _, weight := range weights {
		try := 0
		eventually(t, time.Second, "a waiter whose inbox is known", func() bool {
			try++
			ghost := newRequest("k", fmt.Sprint("ghost", weight, try), weight, most).queued()
			ghost.gets(t, dead, store.Queued)
			if strings.Contains(client.HGet(ctx(), keysOf(t, client, "*:pool")[0], "q"+ghost.ID).Val(), " P") {
				ghosts = append(ghosts, ghost)
				return true
			}
			ghost.ends(t, dead, false) // its store did not know of its subscription yet
			return false
		})
	}
	_ = dead.Close()
	last := newRequest("k", "last", most, most).queued()
	last.gets(t, alive, store.Queued)
	w := last.await(t, alive)
	eventually(t, time.Second, "the dead process has no inbox", func() bool {
		return len(client.PubSubChannels(ctx(), "*").Val()) == 1
	})
	holder.ends(t, alive, true)
	for _, ghost := range ghosts {
		if client.HExists(ctx(), keysOf(t, client, "*:pool")[0], "h"+ghost.ID).Val() {
			t.Error("a permit is reserved for the dead process")
		}
	}
	w.granted(t, 900*time.Millisecond)
}

// More is in use than a waiter's capacity: it waits until less is.
func TestACapacityThatIsLessThanWhatIsInUse(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		s := newStore(t, client)
		one, two := newRequest("k", "one", 1, 2), newRequest("k", "two", 1, 2)
		one.gets(t, s, store.Granted)
		two.gets(t, s, store.Granted)
		third := newRequest("k", "third", 1, 1).queued()
		third.gets(t, s, store.Queued)
		w := third.await(t, s)
		one.ends(t, s, true)
		newRequest("k", "greedy", 1, 1).gets(t, s, store.Taken)
		inUse(t, s, "k", 1)
		w.waits(t)
		two.ends(t, s, true)
		w.granted(t, 5*time.Second)
		third.ends(t, s, true)
	})
}

// The first in the queue is granted a permit, and so is the next one, which has a larger capacity.
func TestSeveralWaitersAreGrantedAtOnce(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	holder, other := newRequest("k", "holder", 1, 2), newRequest("k", "other", 1, 2)
	holder.gets(t, s, store.Granted)
	other.gets(t, s, store.Granted)
	newRequest("k", "first", 1, 2).queued().gets(t, s, store.Queued)
	newRequest("k", "second", 1, 3).queued().gets(t, s, store.Queued)
	holder.ends(t, s, true)
	inUse(t, s, "k", 3)
}

// A request that meets an expired permit does not get it: the first in the queue does.
func TestAnExpiredPermitIsGrantedToTheNextWaiter(t *testing.T) {
	client := redistest.Start(t).Client()
	s := newStore(t, client)
	newRequest("k", "dead", 1, 1).ttl(200*time.Millisecond).gets(t, s, store.Granted)
	newRequest("k", "first", 1, 1).queued().gets(t, s, store.Queued)
	eventually(t, 5*time.Second, "it expires", func() bool {
		state, err := s.InspectPermits(ctx(), "pool", "k")
		return err == nil && state.InUse == 0
	})
	newRequest("k", "second", 1, 1).queued().gets(t, s, store.Queued)
	inUse(t, s, "k", 1)

	// And it is removed by other requests, which did not need its room.
	stays, passes := newRequest("other", "stays", 1, 3), newRequest("other", "passes", 1, 3)
	newRequest("other", "dead", 1, 3).ttl(100*time.Millisecond).gets(t, s, store.Granted)
	stays.gets(t, s, store.Granted)
	passes.gets(t, s, store.Granted)
	eventually(t, 5*time.Second, "it expires", func() bool {
		state, err := s.InspectPermits(ctx(), "pool", "other")
		return err == nil && state.InUse == 2
	})
	passes.ends(t, s, true)
	known := 0
	for _, record := range keysOf(t, client, "*:pool") {
		known += len(client.HKeys(ctx(), record).Val())
	}
	if known != 2+1+2*2 { // a reserved permit and a request; a permit; and of each semaphore its key and a fence
		t.Errorf("%d fields in the records", known)
	}
}

// A queue takes MaxWaiting requests.
func TestAQueueForLightPermitsIsBounded(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	newRequest("k", "holder", 1, 1).gets(t, s, store.Granted)
	first, second := newRequest("k", "first", 1, 1).queued(), newRequest("k", "second", 1, 1).queued()
	first.MaxWaiting, second.MaxWaiting = 1, 1
	first.gets(t, s, store.Queued)
	if reply := second.gets(t, s, store.Taken); !reply.QueueFull || reply.Waiting != 1 {
		t.Errorf("%+v", reply)
	}
}

// No permit is reserved for a waiter without heartbeats, though it did not withdraw.
func TestAWaiterWithoutHeartbeatsHasNoPermit(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	holder, dead, next := newRequest("k", "holder", 1, 1), newRequest("k", "dead", 1, 1).queued(), newRequest("k", "next", 1, 1).queued()
	holder.gets(t, s, store.Granted)
	dead.gets(t, s, store.Queued)
	next.gets(t, s, store.Queued)
	must(t, direct.ZAdd(ctx(), keysOf(t, direct, "*}w")[0], redis.Z{Score: 1, Member: dead.ID}).Err())
	holder.ends(t, s, true)
	next.gets(t, s, store.Granted)
}

// Every key of permits of weight 1 expires, and none before the permits in it.
func TestKeysOfLightPermitsOutliveThem(t *testing.T) {
	client := redistest.Start(t).Client()
	s := newStore(t, client)
	lives := func(step, pattern string, least time.Duration) {
		t.Helper()
		for _, key := range keysOf(t, client, pattern) {
			if ttl := client.PTTL(ctx(), key).Val(); ttl < least || ttl > 10*time.Minute {
				t.Errorf("%s: %s lives for %v", step, key, ttl)
			}
		}
	}
	holder, next := newRequest("k", "holder", 1, 1), newRequest("k", "next", 1, 1).queued()
	holder.gets(t, s, store.Granted)
	lives("held", "*", holder.TTL)
	next.gets(t, s, store.Queued)
	lives("queued", "*", holder.TTL)
	holder.ends(t, s, true)
	next.gets(t, s, store.Granted)
	lives("handed on", "*", next.TTL)
	next.ends(t, s, true)
	for _, key := range keysOf(t, client, "*") {
		if !strings.Contains(key, "}x:") {
			t.Errorf("%s is left", key)
		}
	}

	for held, try := false, 0; !held; try++ { // until the machine is fast enough for a short one
		must(t, client.FlushAll(ctx()).Err())
		short, waiter := newRequest("k", fmt.Sprint("short", try), 1, 1).ttl(300*time.Millisecond), newRequest("k", fmt.Sprint("waiter", try), 1, 1).queued()
		short.gets(t, s, store.Granted)
		waiter.gets(t, s, store.Queued)
		var err error
		held, err = short.release(s)
		must(t, err)
		lives("reserved", "*}h", 2*time.Second)
		waiter.ends(t, s, false)
	}
}

// The fences of permits grow though the clock is behind the last one, however a permit is granted.
func TestFencesOfPermitsGrow(t *testing.T) {
	client := redistest.Start(t).Client()
	s := newStore(t, client)
	holder, next := newRequest("k", "holder", 1, 2), newRequest("k", "next", 1, 2)
	holder.gets(t, s, store.Granted)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	must(t, client.HSet(ctx(), keysOf(t, client, "*:pool")[0], "f", ahead).Err())
	if reply := next.gets(t, s, store.Granted); reply.Fence != ahead+1 {
		t.Errorf("fence %d after %d", reply.Fence, ahead)
	}
	waiter := newRequest("k", "waiter", 1, 2).queued()
	waiter.gets(t, s, store.Queued)
	w := waiter.await(t, s)
	holder.ends(t, s, true)
	w.granted(t, 5*time.Second)
	if w.grant.Fence != ahead+2 {
		t.Errorf("fence %d after %d", w.grant.Fence, ahead+1)
	}
}

// After many permits have expired, no call takes long, and the whole capacity is free at once.
func TestTenThousandExpiredPermits(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	const n = 10_000
	atOnce(64, n, func(i int) {
		newRequest("k", fmt.Sprint("p", i), 1+i/8000, 2*n).ttl(10*time.Minute).gets(t, s, store.Granted)
	})
	newRequest("k", "stays", 1, 2*n).ttl(time.Hour).gets(t, s, store.Granted)
	left := func() int64 { return direct.ZCard(ctx(), keysOf(t, direct, "*}h")[0]).Val() }
	moveTimes(t, direct, -20*time.Minute)
	if got := left(); got != n+1 {
		t.Errorf("%d permits are remembered: the test does not test what it says", got)
	}
	inUse(t, s, "k", 1)
	configure(t, direct, "slowlog-log-slower-than", "10000") // µs
	must(t, direct.Do(ctx(), "slowlog", "reset").Err())
	began := time.Now()
	whole := newRequest("k", "whole", 2*n-1, 2*n)
	whole.gets(t, s, store.Granted)
	if took := time.Since(began); took > 100*time.Millisecond {
		t.Errorf("an acquire took %v", took)
	}
	whole.ends(t, s, true)
	// Expired permits are removed in batches.
	for range n / 200 {
		r := newRequest("k", "next", 1, 2*n)
		r.ID += fmt.Sprint(time.Now().UnixNano())[10:]
		r.gets(t, s, store.Granted)
		r.ends(t, s, true)
	}
	if got := left(); got != 1 {
		t.Errorf("%d permits are remembered, want one", got)
	}
	if slow := direct.SlowLogGet(ctx(), 10).Val(); len(slow) != 0 {
		t.Errorf("calls of more than 10 ms: %v", slow)
	}
	if got := len(direct.HKeys(ctx(), keysOf(t, direct, "*:pool")[0]).Val()); got > 4 {
		t.Errorf("the record has %d fields", got)
	}
}

func TestKeysOfPermitsExpire(t *testing.T) {
	server := redistest.Start(t)
	client, hook := server.Client(), new(scriptKeys)
	client.AddHook(hook)
	direct := server.Client()
	s := newStore(t, client, redisstore.WithPrefix("shop"), redisstore.WithSecret([]byte("hidden")))
	check := func(step string, atLeast int) {
		t.Helper()
		keys := keysOf(t, direct, "*")
		for _, key := range keys {
			if ttl := direct.PTTL(ctx(), key).Val(); ttl <= 0 || ttl > 3*time.Hour+time.Minute { // half as long again
				t.Errorf("%s: %s lives for %v", step, key, ttl)
			}
			if !strings.HasPrefix(key, "shop:s:{") && !strings.HasPrefix(key, "shop:c:{") {
				t.Errorf("%s: %s is not a semaphore's", step, key)
			}
		}
		if len(keys) < atLeast {
			t.Errorf("%s: %d keys: the test does not test what it says", step, len(keys))
		}
	}
	light, heavy := newRequest("SECRET", "light", 1, 4), newRequest("SECRET", "heavy", 3, 4)
	light.gets(t, s, store.Granted)
	heavy.gets(t, s, store.Granted)
	check("acquire", 3)
	next := newRequest("SECRET", "next", 4, 4).queued()
	next.gets(t, s, store.Queued)
	check("queue", 5)
	w := next.await(t, s)
	for _, r := range []request{light.ttl(2 * time.Hour), heavy.ttl(2 * time.Hour)} {
		held, err := r.renew(s)
		wantOwned(t, "renew", held, err)
	}
	check("renew", 5)
	if strings.Contains(dump(t, direct), "SECRET") {
		t.Error("the server has the text of a key")
	}
	for state, err := range s.ListPermits(ctx(), "pool") {
		if err != nil || len(state.Key) != 22 || state.InUse != 4 || state.Waiting != 1 || len(state.Holders) != 2 {
			t.Errorf("listed %+v, %v", state, err)
		}
	}
	light.ends(t, s, true)
	heavy.ends(t, s, true)
	w.granted(t, 5*time.Second)
	next.ends(t, s, true)
	check("release", 3)
	latch := store.LatchRequest{Name: "batch", Count: 2, TTL: time.Minute}
	if _, err := s.CountDownLatch(ctx(), latch, "SECRET"); err != nil {
		t.Fatal(err)
	}
	check("latch", 4)
	for _, key := range keysOf(t, direct, "shop:s:*") {
		if !strings.Contains(key, "}x:") {
			t.Errorf("%s is left", key)
		}
	}
	hook.mu.Lock()
	defer hook.mu.Unlock()
	for _, keys := range hook.calls {
		if tag := hashTag(keys[0]); tag == "" || slices.ContainsFunc(keys, func(k string) bool { return hashTag(k) != tag }) {
			t.Errorf("keys of one script call are in several slots: %q", keys)
		}
	}
}

func TestASemaphoresKeysOfAnotherTypeAreLeftAlone(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	for _, suffix := range []string{":pool", "h", "q", "w", "v"} {
		t.Run(suffix, func(t *testing.T) {
			must(t, direct.FlushAll(ctx()).Err())
			s := newStore(t, direct)
			good, bad := newRequest("good", "good", 2, 3), newRequest("bad", "bad", 2, 3)
			bad.gets(t, s, store.Granted)
			stem := strings.TrimSuffix(keysOf(t, direct, "*:pool")[0], ":pool")
			good.gets(t, s, store.Granted)
			direct.Del(ctx(), stem+suffix)
			must(t, direct.SAdd(ctx(), stem+suffix, "member").Err())
			before := dump(t, direct)
			_, err := newRequest("bad", "other", 1, 1).queued().acquire(s)
			wantUnavailable(t, err, false)
			_, err = bad.release(s)
			wantUnavailable(t, err, false)
			if after := dump(t, direct); after != before {
				t.Errorf("an error changed something: %q, then %q", before, after)
			}
			held, err := s.RenewPermits(ctx(), []store.PermitRef{bad.permit(), good.permit()})
			if err != nil || len(held) != 2 || !held[1] {
				t.Errorf("renewed %v, %v; want the good one at least", held, err)
			}
			for _, err := range s.ListPermits(ctx(), "pool") {
				if err != nil {
					t.Errorf("list: %v", err)
				}
			}
			good.ends(t, s, true)
		})
	}
}

// A full server grants no new permits, and releases those that it has.
func TestPermitsWhenMemoryIsFull(t *testing.T) { eachForm(t, permitsWhenMemoryIsFull) }

func permitsWhenMemoryIsFull(t *testing.T, server *redistest.Server, client *redis.Client) {
	direct := server.Client()
	s := newStore(t, client)
	one, two := newRequest("k", "one", 1, 2), newRequest("k", "two", 1, 2)
	one.gets(t, s, store.Granted)
	two.gets(t, s, store.Granted)
	waiter := newRequest("k", "waiter", 1, 2).queued()
	waiter.gets(t, s, store.Queued)
	configure(t, direct, "maxmemory", "1")
	newRequest("k", "new", 1, 9).gets(t, s, store.Taken) // others wait
	for _, weight := range []int{1, 2} {
		_, err := newRequest("new", "new", weight, 9).acquire(s)
		wantUnavailable(t, err, false)
	}
	held, err := one.renew(s)
	wantOwned(t, "renew", held, err)
	two.ends(t, s, true)
	waiter.ends(t, s, false)
	one.ends(t, s, true)
}
