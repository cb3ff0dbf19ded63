package redisstore_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// startWaiters starts 64 waiters for one lock in two stores, behind a holder that dies.
func startWaiters(t *testing.T, client redis.UniversalClient, lease time.Duration) (waits []*wait, stores [2]*redisstore.Store) {
	t.Helper()
	stores = [2]*redisstore.Store{newStore(t, client), newStore(t, client)}
	newClaim("k", "first").ttl(lease).gets(t, stores[0], store.Granted)
	for i := range 64 {
		waits = append(waits, newClaim("k", fmt.Sprint("w", i)).waitsIn(t, stores[i%2]))
	}
	subscribed(t, client, 2)
	return waits, stores
}

// allServed waits until every waiter was granted the lock, which each releases at once.
func allServed(t *testing.T, waits []*wait, stores [2]*redisstore.Store, within time.Duration) {
	t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	for i, w := range waits {
		wg.Go(func() {
			<-w.done
			if w.err != nil {
				t.Errorf("%s: %v", w.Label, w.err)
				return
			}
			if held, err := w.release(stores[i%2]); err != nil || !held {
				t.Errorf("release by %s: %v, %v", w.Label, held, err)
			}
		})
	}
	all := make(chan struct{})
	go func() {
		wg.Wait()
		close(all)
	}()
	select {
	case <-all:
		t.Logf("all had the lock after %v", time.Since(began))
	case <-time.After(within):
		for _, w := range waits {
			w.stop()
		}
		t.Fatalf("not all had the lock within %v", within)
	}
}

func TestWaitersSurviveDamage(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	for name, damage := range map[string]func(t *testing.T, direct *redis.Client){
		"nothing":      func(*testing.T, *redis.Client) {},
		"SCRIPT FLUSH": func(t *testing.T, direct *redis.Client) { must(t, direct.ScriptFlush(ctx()).Err()) },
		"FLUSHALL":     func(t *testing.T, direct *redis.Client) { must(t, direct.FlushAll(ctx()).Err()) },
		"CLIENT KILL": func(t *testing.T, direct *redis.Client) {
			must(t, direct.ClientKillByFilter(ctx(), "type", "pubsub").Err())
		},
		"DEL of the record": func(t *testing.T, direct *redis.Client) {
			must(t, direct.Del(ctx(), keysOf(t, direct, "*:ljobs")...).Err())
		},
		"DEL of the order": func(t *testing.T, direct *redis.Client) {
			must(t, direct.Del(ctx(), keysOf(t, direct, "*}o")...).Err())
		},
		"DEL of the items": func(t *testing.T, direct *redis.Client) {
			must(t, direct.Del(ctx(), keysOf(t, direct, "*}i")...).Err())
		},
		"DEL of the processes": func(t *testing.T, direct *redis.Client) {
			must(t, direct.Del(ctx(), keysOf(t, direct, "*}p")...).Err())
		},
		"DEL of a place": func(t *testing.T, direct *redis.Client) {
			order := keysOf(t, direct, "*}o")[0]
			must(t, direct.ZRem(ctx(), order, direct.ZRange(ctx(), order, 3, 3).Val()[0]).Err())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			direct := server.Client()
			waits, stores := startWaiters(t, server.Client(), lease)
			damage(t, direct)
			allServed(t, waits, stores, 10*time.Second+lease)
			onlyRecords(t, direct)
		})
	}
}

// A server that restarts empty has neither the holder nor the waiters.
func TestWaitersSurviveARestart(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	waits, stores := startWaiters(t, server.Client(), time.Minute)
	server.Restart()
	allServed(t, waits, stores, 12*time.Second)
}

// With cut connections, lost replies, lost scripts and lost subscriptions, the lock has one holder
// at a time, fences grow, and no key is left.
func TestALockInAStorm(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := server.Client()
	var stores []*redisstore.Store
	var proxies []*redistest.Proxy
	for range 3 {
		proxy := redistest.NewProxy(t, server.Addr())
		proxies = append(proxies, proxy)
		stores = append(stores, newStore(t, dial(t, proxy.Addr(), 200*time.Millisecond), redisstore.WithTimeout(time.Second)))
	}
	storm, calm := context.WithCancel(ctx())
	defer calm()
	var (
		wg                      sync.WaitGroup
		inside, fence           atomic.Int64
		grants, errs, withdrawn atomic.Int64
	)
	for i := range 12 {
		s := stores[i%3]
		wg.Go(func() {
			for n := 0; storm.Err() == nil; n++ {
				c := newClaim("k", fmt.Sprintf("%d-%d", i, n)).queued()
				reply, err := c.acquire(s)
				if err == nil && reply.Outcome == store.Queued {
					wait, cancel := context.WithTimeout(ctx(), time.Duration(1+n%40)*50*time.Millisecond)
					reply.Outcome = store.Granted
					c.Place = reply.Place
					if reply.Grant, err = s.AwaitLease(wait, c.LeaseRequest); err == nil {
						c.fence.Store(reply.Fence)
					}
					cancel()
				}
				switch {
				case err != nil:
					errs.Add(1)
				case reply.Outcome != store.Granted:
					withdrawn.Add(1)
				default:
					grants.Add(1)
					if in := inside.Add(1); in != 1 {
						t.Errorf("%d have the lock", in)
					}
					if last := fence.Swap(reply.LastFence); reply.Fence <= last {
						t.Errorf("fence %d after %d", reply.Fence, last)
					}
					if held, err := c.renew(s); err == nil && !held {
						t.Error("not held any more")
					}
					inside.Add(-1)
				}
				for {
					if _, err := c.release(s); err == nil {
						break
					}
				}
			}
		})
	}
	tick := time.NewTicker(70 * time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for n := 0; time.Since(began) < 6*time.Second || grants.Load() < 10 && time.Since(began) < time.Minute; n++ {
		<-tick.C
		switch proxy := proxies[n%3]; n / 3 % 5 {
		case 0:
			proxy.CutAll()
		case 1:
			proxy.LoseReplies("evalsha", 3, redistest.Cut)
		case 2:
			must(t, direct.ScriptFlush(ctx()).Err())
		case 3:
			_ = direct.ClientKillByFilter(ctx(), "type", "pubsub").Err()
		case 4:
			proxy.LoseReplies("evalsha", 1, redistest.Silence)
		}
	}
	calm()
	for _, proxy := range proxies {
		proxy.Mend()
	}
	wg.Wait()
	t.Logf("%d grants, %d errors, %d withdrawn", grants.Load(), errs.Load(), withdrawn.Load())
	if grants.Load() < 10 {
		t.Errorf("only %d grants", grants.Load())
	}
	onlyRecords(t, direct)
}

func TestAMasterThatIsDownCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client()
	s := newStore(t, client, redisstore.WithTimeout(2*time.Second))
	var holds []claim
	var refs []store.LeaseRef
	for i := range 30 {
		c := newClaim(fmt.Sprint("k", i), fmt.Sprint("c", i))
		c.gets(t, s, store.Granted)
		holds, refs = append(holds, c), append(refs, c.ref())
	}
	down := make(map[string]bool)
	first := newStore(t, cluster.Servers[0].Client())
	for state, err := range first.ListLeases(ctx(), store.LockKind+"jobs") {
		must(t, err)
		down[state.Key] = true
	}
	var waits []*wait
	for _, h := range holds {
		if !down[h.Key] {
			waits = append(waits, newClaim(h.Key, "waits for "+h.Label).waitsIn(t, s))
		}
	}
	cluster.Servers[0].Stop()
	eventually(t, 10*time.Second, "the other leases are renewed", func() bool {
		held, err := s.RenewLeases(ctx(), refs)
		if err == nil || len(held) != len(holds) {
			return false
		}
		for i, h := range holds {
			if held[i] == down[h.Key] {
				return false
			}
		}
		return true
	})
	<-time.After(3500 * time.Millisecond) // longer than the life of a waiter
	for _, w := range waits {
		w.waits(t)
	}
	for _, h := range holds {
		if !down[h.Key] {
			h.ends(t, s, true)
		}
	}
	for _, w := range waits {
		w.granted(t, 5*time.Second)
	}
}
