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
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestPermitsAcrossProcesses(t *testing.T) {
	testpace.Parallel(t)
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		a, b := newStore(t, client), newStore(t, client)
		light, heavy := newPermit("k", "light", 1, 3), newPermit("k", "heavy", 2, 3)
		light.gets(t, a, store.Granted)
		heavy.gets(t, b, store.Granted)
		newPermit("k", "", 1, 1).inUse(t, a, 3)
		first, second := newPermit("k", "first", 2, 3).queued(), newPermit("k", "second", 1, 3).queued()
		if reply := first.gets(t, a, store.Queued); reply.InUse != 3 || reply.Waiting != 0 || reply.Remaining <= 25*time.Second {
			t.Errorf("queued: %+v", reply)
		}
		second.gets(t, b, store.Queued)
		w1, w2 := first.await(t, a), second.await(t, b)
		subscribed(t, client, 2)
		light.ends(t, a, true)
		newPermit("k", "greedy", 1, 3).gets(t, a, store.Taken) // there is room for it, but others were first
		w1.waits(t)
		w2.waits(t)
		heavy.ends(t, b, true)
		w1.granted(t, 900*time.Millisecond)
		w2.granted(t, 900*time.Millisecond)
		newPermit("k", "", 1, 1).inUse(t, b, 3)
		first.ends(t, a, true)
		second.ends(t, b, true)
		newPermit("k", "", 1, 1).inUse(t, b, 0)
	})
}

// More is in use than a waiter's capacity: it waits until less is.
func TestACapacityThatIsLessThanWhatIsInUse(t *testing.T) {
	testpace.Parallel(t)
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		s := newStore(t, client)
		one, two := newPermit("k", "one", 1, 2), newPermit("k", "two", 1, 2)
		one.gets(t, s, store.Granted)
		two.gets(t, s, store.Granted)
		third := newPermit("k", "third", 1, 1).queued()
		third.gets(t, s, store.Queued)
		w := third.await(t, s)
		one.ends(t, s, true)
		newPermit("k", "greedy", 1, 1).gets(t, s, store.Taken)
		newPermit("k", "", 1, 1).inUse(t, s, 1)
		w.waits(t)
		two.ends(t, s, true)
		w.granted(t, 5*time.Second)
		third.ends(t, s, true)
	})
}

// The first in the queue is granted a permit, and so is the next one, which has a larger capacity.
func TestSeveralWaitersAreGrantedAtOnce(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, redistest.Start(t).Client())
	holder, other := newPermit("k", "holder", 1, 2), newPermit("k", "other", 1, 2)
	holder.gets(t, s, store.Granted)
	other.gets(t, s, store.Granted)
	newPermit("k", "first", 1, 2).queued().gets(t, s, store.Queued)
	newPermit("k", "second", 1, 3).queued().gets(t, s, store.Queued)
	holder.ends(t, s, true)
	newPermit("k", "", 1, 1).inUse(t, s, 3)
}

// inUse fails the test unless the holds of its key have this weight.
func (c claim) inUse(t testing.TB, s *redisstore.Store, want int) {
	t.Helper()
	if state, err := s.InspectLease(ctx(), c.Name, c.Key); err != nil || state.InUse != want {
		t.Fatalf("inspect: %+v, %v; want %d in use", state, err, want)
	}
}

// The requests of a process that has ended are passed over at once.
func TestADeadProcessIsPassedOver(t *testing.T) {
	testpace.Parallel(t)
	for name, weights := range map[string][]int{"one": {1}, "a light and a heavy one": {1, 2}} {
		t.Run(name, func(t *testing.T) {
			client := redistest.Start(t).Client()
			alive, dead := newStore(t, client), newStore(t, client)
			most := slices.Max(weights)
			holder := newPermit("k", "holder", most, most)
			holder.gets(t, alive, store.Granted)
			newPermit("k", "knock", 1, most).gets(t, dead, store.Taken)
			pushed(t, alive, dead)
			for _, weight := range weights {
				newPermit("k", fmt.Sprint("ghost", weight), weight, most).queued().gets(t, dead, store.Queued)
			}
			must(t, dead.Close())
			w := newPermit("k", "last", most, most).waitsIn(t, alive)
			eventually(t, time.Second, "the dead process has no inbox", func() bool {
				return len(client.PubSubChannels(ctx(), "*").Val()) == 1
			})
			holder.ends(t, alive, true)
			w.granted(t, 900*time.Millisecond)
		})
	}
}

// pushed waits until stores have seen that their inboxes work.
func pushed(t *testing.T, stores ...*redisstore.Store) {
	t.Helper()
	eventually(t, 5*time.Second, "subscriptions", func() bool {
		return !slices.ContainsFunc(stores, (*redisstore.Store).Polls)
	})
}

// A request that meets an expired hold does not take its place: the first in the queue does.
func TestAnExpiredPermitIsGrantedToTheNextWaiter(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, redistest.Start(t).Client())
	dead := newPermit("k", "dead", 1, 1).ttl(200 * time.Millisecond)
	dead.gets(t, s, store.Granted)
	first := newPermit("k", "first", 1, 1).queued()
	first.gets(t, s, store.Queued)
	eventually(t, 5*time.Second, "it expires", func() bool {
		state, err := s.InspectLease(ctx(), dead.Name, "k")
		return err == nil && state.InUse == 0
	})
	newPermit("k", "second", 1, 1).queued().gets(t, s, store.Queued)
	first.gets(t, s, store.Granted)
	first.inUse(t, s, 1)
}

// No permit is granted to a waiter without a subscription and without heartbeats, though it did not
// withdraw.
func TestAWaiterWithoutHeartbeatsHasNoPermit(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t, "--user", "mute", "on", ">secret", "~*", "+@all", "resetchannels")
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), Username: "mute", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	s, mute, direct := newStore(t, server.Client()), newStore(t, client), server.Client()
	holder, dead := newPermit("k", "holder", 1, 1), newPermit("k", "dead", 1, 1).queued()
	holder.gets(t, s, store.Granted)
	dead.gets(t, mute, store.Queued)
	processes := keysOf(t, direct, "*}p")[0]
	for name, text := range direct.HGetAll(ctx(), processes).Val() { // see scripts/lib/lease_queue.lua
		_, rest, _ := strings.Cut(text, ":")
		must(t, direct.HSet(ctx(), processes, name, "1:"+rest).Err())
	}
	next := newPermit("k", "next", 1, 1).queued()
	next.gets(t, s, store.Queued)
	holder.ends(t, s, true)
	next.gets(t, s, store.Granted)
}

// The fences of permits grow though the clock is behind the last one, however a permit is granted.
func TestFencesOfPermitsGrow(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, redistest.Start(t).Client())
	holder, next := newPermit("k", "holder", 1, 2), newPermit("k", "next", 1, 2)
	holder.gets(t, s, store.Granted)
	ahead := time.Now().Add(time.Hour).UnixMicro()
	must(t, s.RaiseFence(ctx(), holder.Name, "k", ahead))
	if reply := next.gets(t, s, store.Granted); reply.Fence != ahead+1 {
		t.Errorf("fence %d after %d", reply.Fence, ahead)
	}
	w := newPermit("k", "waiter", 1, 2).waitsIn(t, s)
	holder.ends(t, s, true)
	if grant := w.granted(t, 5*time.Second); grant.Fence != ahead+2 {
		t.Errorf("fence %d after %d", grant.Fence, ahead+1)
	}
}

// After many permits have expired no call takes long, and a waiter gets the whole capacity in time.
func TestTenThousandExpiredPermits(t *testing.T) {
	const tries = 4
	for try := 1; ; try++ {
		switch slow := expiredPermits(t); {
		case len(slow) == 0:
			return
		case try == tries: // a busy machine interrupts the server now and then
			t.Fatalf("calls of more than 50 ms, %d times out of %d: %v", try, tries, slow)
		}
	}
}

// expiredPermits returns what the server took long for.
func expiredPermits(t *testing.T) []redis.SlowLog {
	t.Helper()
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	const n = 10_000
	end := time.Now().Add(testpace.Scale(4 * time.Second))
	atOnce(64, n, func(i int) {
		newPermit("k", fmt.Sprint("p", i), 1+i/8000, 2*n).ttl(time.Until(end)).gets(t, s, store.Granted)
	})
	stays := newPermit("k", "stays", 1, 2*n)
	stays.gets(t, s, store.Granted)
	if got := direct.ZCard(ctx(), keysOf(t, direct, "*}o")[0]).Val(); got != n+1 {
		t.Fatalf("%d permits are remembered: the test does not test what it says", got)
	}
	configure(t, direct, "slowlog-log-slower-than", "50000") // µs
	<-time.After(time.Until(end))
	must(t, direct.Do(ctx(), "slowlog", "reset").Err())
	began := time.Now()
	whole := newPermit("k", "whole", 2*n-1, 2*n)
	w := whole.waitsIn(t, s)
	w.granted(t, 15*time.Second)
	if took := time.Since(began); took > testpace.Scale(4*time.Second) {
		t.Errorf("waited for %v", took)
	}
	slow := direct.SlowLogGet(ctx(), 10).Val()
	whole.ends(t, s, true)
	stays.inUse(t, s, 1)
	stays.ends(t, s, true)
	if keys := direct.Keys(ctx(), "*:"+stays.Name).Val(); len(keys) != 0 {
		t.Errorf("%q are left", keys)
	}
	return slow
}
