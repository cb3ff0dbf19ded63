package redisstore_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// permitSteps are the steps of a permit of weight 2 of 3, each with the weight in use after it.
var permitSteps = []struct {
	name  string
	take  func(claim, *redisstore.Store) (bool, error)
	inUse int
}{
	{"acquire", func(r claim, s *redisstore.Store) (bool, error) {
		reply, err := r.acquire(s)
		return reply.Outcome == store.Granted && reply.Fence > 0, err
	}, 2},
	{"renew", claim.renew, 2},
	{"release", func(r claim, s *redisstore.Store) (bool, error) {
		outcomes, err := s.ReleaseLeases(ctx(), []store.LeaseRef{r.ref()})
		return len(outcomes) == 1 && outcomes[0] != store.NotHeld, err
	}, 0},
}

func TestLostRepliesOfAPermit(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	for name, how := range losses {
		for _, step := range permitSteps {
			t.Run(name+" "+step.name, func(t *testing.T) {
				proxy := redistest.NewProxy(t, server.Addr())
				s := newStore(t, dial(t, proxy.Addr(), 100*time.Millisecond), redisstore.WithTimeout(3*time.Second))
				r := newPermit(name+step.name, "holder", 2, 3)
				if step.name != "acquire" {
					r.gets(t, direct, store.Granted)
				}
				proxy.LoseReplies("evalsha", 1, how)
				held, err := step.take(r, s)
				wantOwned(t, step.name, held, err)
				r.inUse(t, direct, step.inUse)
			})
		}
	}
}

// What a repeated release does not find any more may have been held.
func TestEveryStepOfAPermitCanBeSentTwice(t *testing.T) {
	testpace.Parallel(t)
	for weight, capacity := range map[int]int{1: 1, 2: 3} {
		t.Run(fmt.Sprint("weight ", weight), func(t *testing.T) { everyStepTwice(t, weight, capacity) })
	}
}

func everyStepTwice(t *testing.T, weight, capacity int) {
	s := newStore(t, redistest.Start(t).Client())
	r := newPermit("k", "holder", weight, capacity)
	endsTwice := func(r claim) {
		t.Helper()
		r.ends(t, s, true)
		again := r.ref()
		again.Repeated = true
		outcomes, err := s.ReleaseLeases(ctx(), []store.LeaseRef{again})
		if err != nil || outcomes[0] == store.NotHeld {
			t.Errorf("a repeated release: %v, %v", outcomes, err)
		}
	}
	first := r.gets(t, s, store.Granted)
	if again := r.gets(t, s, store.Granted); again.Fence != first.Fence {
		t.Errorf("fence %d, then %d", first.Fence, again.Fence)
	}
	r.inUse(t, s, weight)
	waiter := newPermit("k", "waiter", weight, capacity).queued()
	for range 2 {
		if reply := waiter.gets(t, s, store.Queued); reply.Waiting != 0 || reply.InUse != weight {
			t.Errorf("queued: %+v", reply)
		}
	}
	endsTwice(r)
	for range 2 {
		waiter.gets(t, s, store.Granted)
	}
	r.inUse(t, s, weight)
	endsTwice(waiter)
	r.inUse(t, s, 0)
}

// The capacity changes while requests wait, each of which has its own.
func TestACapacityThatChangesInTheQueue(t *testing.T) {
	testpace.Parallel(t)
	client := redistest.Start(t).Client()
	s := newStore(t, client)
	holder := newPermit("k", "holder", 2, 2)
	holder.gets(t, s, store.Granted)
	waiter := newPermit("k", "waiter", 2, 2).queued()
	behind := newPermit("k", "behind", 1, 5).queued()
	waiter.gets(t, s, store.Queued)
	behind.gets(t, s, store.Queued)
	w := behind.await(t, s)
	subscribed(t, client, 1)
	w.waits(t) // there is room for it, but not for the one before it
	waiter.Capacity = 4
	waiter.gets(t, s, store.Granted)
	w.granted(t, 1500*time.Millisecond)
	newPermit("k", "", 1, 1).inUse(t, s, 5)
}

func TestPermitWaitersSurviveDamage(t *testing.T) {
	t.Parallel()
	del := func(pattern string) func(*testing.T, *redis.Client) {
		return func(t *testing.T, direct *redis.Client) {
			must(t, direct.Del(ctx(), keysOf(t, direct, pattern)...).Err())
		}
	}
	const lease = 3 * time.Second
	for name, damage := range map[string]func(*testing.T, *redis.Client){
		"SCRIPT FLUSH": func(t *testing.T, direct *redis.Client) { must(t, direct.ScriptFlush(ctx()).Err()) },
		"FLUSHALL":     func(t *testing.T, direct *redis.Client) { must(t, direct.FlushAll(ctx()).Err()) },
		"CLIENT KILL": func(t *testing.T, direct *redis.Client) {
			must(t, direct.ClientKillByFilter(ctx(), "type", "pubsub").Err())
		},
		"DEL of the record":     del("*:sjobs"),
		"DEL of the order":      del("*}o"),
		"DEL of the items":      del("*}i"),
		"DEL of the processes":  del("*}p"),
		"DEL of all but record": del("*}[oip]"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client, direct := server.Client(), server.Client()
			stores := [2]*redisstore.Store{newStore(t, client), newStore(t, client)}
			for i := range 3 { // holders that die
				newPermit("k", fmt.Sprint("first", i), 1+i%2, 4).ttl(lease).gets(t, stores[0], store.Granted)
			}
			var waits []*wait
			for i := range 32 {
				waits = append(waits, newPermit("k", fmt.Sprint("w", i), 1+i%3, 4).waitsIn(t, stores[i%2]))
			}
			subscribed(t, client, 2)
			damage(t, direct)
			late := time.AfterFunc(10*time.Second+lease, func() { // a heartbeat from behind the front, and the lease
				for _, w := range waits {
					w.stop()
				}
			})
			defer late.Stop()
			var wg sync.WaitGroup
			for i, w := range waits { // the order may be another one after the damage
				wg.Go(func() {
					if <-w.done; w.err != nil {
						t.Errorf("%s: %v", w.Label, w.err)
					} else if held, err := w.release(stores[i%2]); err != nil || !held {
						t.Errorf("release by %s: %v, %v", w.Label, held, err)
					}
				})
			}
			wg.Wait()
			if keys := lasting(t, direct); len(keys) > 0 {
				t.Errorf("%q do not expire", keys)
			}
			inUseAtLast(t, stores[0], 0)
		})
	}
}

// inUseAtLast waits until the permits from before the damage have expired.
func inUseAtLast(t *testing.T, s *redisstore.Store, want int) {
	t.Helper()
	eventually(t, 5*time.Second, "nothing is in use", func() bool {
		state, err := s.InspectLease(ctx(), newPermit("k", "", 1, 1).Name, "k")
		return err == nil && state.InUse == want && state.Waiting == 0
	})
}

func TestALatchWhosePushIsLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := server.Client()
	a, b := newStore(t, server.Client()), newStore(t, server.Client())
	latch := store.LatchRequest{Name: "batch", Count: 2, TTL: time.Minute}
	done := make(chan error, 1)
	go func() { done <- a.AwaitLatch(ctx(), latch) }()
	keys := func(pattern string) int { return len(direct.Keys(ctx(), pattern).Val()) }
	eventually(t, time.Second, "a waiter", func() bool { return keys("*}w") == 1 })
	if n, err := b.CountDownLatch(ctx(), latch, "one"); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	must(t, direct.ClientKillByFilter(ctx(), "type", "pubsub").Err())
	if n, err := b.CountDownLatch(ctx(), latch, "two"); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	select {
	case err := <-done:
		must(t, err)
	case <-time.After(4 * time.Second):
		t.Error("not woken")
	}
	if n := keys("*}w"); n != 0 {
		t.Error("the server still has the waiter")
	}
}
