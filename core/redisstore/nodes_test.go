package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// keysOn returns n keys of newLimiter that a master has, and n that others have.
func keysOn(t *testing.T, client *redis.ClusterClient, master *redistest.Server, n int) (here, elsewhere []string) {
	t.Helper()
	direct := newStore(t, client, redisstore.WithPrefix("where"))
	l := newLimiter(t, direct)
	for i := 0; len(here) < n || len(elsewhere) < n; i++ {
		key := fmt.Sprint("key-", i)
		before := master.Client().DBSize(ctx()).Val()
		if _, err := l.Allow(ctx(), key); err != nil {
			t.Fatal(err)
		}
		if master.Client().DBSize(ctx()).Val() > before {
			here = append(here, key)
		} else {
			elsewhere = append(elsewhere, key)
		}
	}
	return here[:n], elsewhere[:n]
}

// A master of a Cluster is lost, and its replica takes over: no lease of ten seconds is lost, and
// the shard works as soon as it has a master again.
func TestAMasterIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *redistest.Server){
		"killed":  func(_ *testing.T, master *redistest.Server) { master.Stop() },
		"stopped": stopped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const n = 60
			lease := testpace.Scale(10 * time.Second)
			cluster := redistest.StartCluster(t)
			cluster.AddReplicas()
			client := cluster.Client()
			s := newStore(t, client, hasty)
			locks, err := lock.New(s, "jobs", lock.WithTTL(lease))
			must(t, err)
			g := newGuard(t, s, guard.WithTTL(lease))
			var leases []*lock.Lease
			var attempts []*guard.Attempt
			for i := range n {
				eventually(t, 5*time.Second, "it is held", func() bool { // also on a busy machine
					l, err := locks.Lock(ctx(), fmt.Sprint("k", i))
					leases = append(leases, l)
					return err == nil
				})
				eventually(t, 5*time.Second, "it has begun", func() bool {
					a, _, err := g.Begin(ctx(), guard.Operation{Scope: fmt.Sprint("user-", i), Key: "order"})
					attempts = append(attempts, a)
					return err == nil
				})
			}
			leases = slices.DeleteFunc(leases, func(l *lock.Lease) bool { return l == nil })
			attempts = slices.DeleteFunc(attempts, func(a *guard.Attempt) bool { return a == nil })
			if len(leases) != n || len(attempts) != n {
				t.Fatalf("%d locks and %d attempts", len(leases), len(attempts))
			}
			for _, server := range cluster.Servers { // the replica has all of them
				conn := server.Client().Conn()
				must(t, conn.Ping(ctx()).Err())
				if n, err := conn.Do(ctx(), "wait", 1, 5000).Int(); n != 1 || err != nil {
					t.Fatalf("WAIT: %d, %v", n, err)
				}
				must(t, conn.Close())
			}
			here, _ := keysOn(t, client, cluster.Servers[0], 1)
			key := here[0]
			limiter := newLimiter(t, s)
			lost := time.Now()
			lose(t, cluster.Servers[0])
			promoted := cluster.Replicas[0].Client()
			eventually(t, 20*time.Second, "the replica is the master", func() bool {
				return strings.Contains(promoted.Info(ctx(), "replication").Val(), "role:master")
			})
			began := time.Now()
			eventually(t, 1500*time.Millisecond+slack, "the shard works again", func() bool {
				_, err := limiter.Allow(ctx(), key)
				return err == nil
			})
			t.Logf("promoted after %v, works %v later", began.Sub(lost), time.Since(began))
			eventually(t, lease, "every lease was renewed since", func() bool {
				return !slices.ContainsFunc(leases, func(l *lock.Lease) bool {
					return l.Context().Err() == nil && l.ValidUntil().Before(began.Add(lease))
				})
			})
			dead := 0
			for _, l := range leases {
				if l.Context().Err() != nil {
					dead++
				}
			}
			if dead > 0 {
				t.Errorf("%d of %d locks were lost", dead, n)
			}
			dead = 0
			for i, a := range attempts {
				if a.Context().Err() != nil {
					dead++
				}
				if err := a.Complete(ctx(), guard.Result{Status: 201}); err != nil {
					t.Errorf("attempt %d: %v", i, err)
				}
			}
			if dead > 0 {
				t.Errorf("%d of %d attempts were lost", dead, n)
			}
			for _, l := range leases {
				if err := l.Unlock(ctx()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// One of three masters is down for seconds: calls to the others are as fast as before, and
// its own calls fail at once.
func TestAMasterIsDown(t *testing.T) {
	var measuring sync.Mutex // only one at a time; the other starts its Cluster
	for name, lose := range map[string]func(*testing.T, *redistest.Server){
		"killed":  func(_ *testing.T, master *redistest.Server) { master.Stop() },
		"stopped": stopped,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for timeout := 250 * time.Millisecond; timeout <= 4*time.Second; timeout *= 2 {
				if !lossOfAMaster(t, lose, timeout, &measuring) {
					return
				}
			}
			t.Error("the machine takes seconds for a PING")
		})
	}
}

// lossOfAMaster checks what callers of a Cluster see of the loss of a master, with a timeout of the
// store. It returns true if PINGs to another master were so late that it proves nothing.
func lossOfAMaster(
	t *testing.T, lose func(*testing.T, *redistest.Server), timeout time.Duration, measuring sync.Locker,
) (late bool) {
	t.Helper()
	cluster := redistest.StartCluster(t)
	client := cluster.Client()
	s := newStore(t, client, redisstore.WithTimeout(timeout), redisstore.WithoutDenialCache())
	l := newLimiter(t, s)
	here, elsewhere := keysOn(t, client, cluster.Servers[0], 20)
	for _, key := range append(slices.Clone(here), elsewhere...) {
		_, err := l.AllowN(ctx(), key, 0)
		must(t, err)
	}
	measuring.Lock()
	defer measuring.Unlock()
	// load makes 8 callers decide about some keys, and returns how long each call took.
	load := func(during time.Duration, keys []string, pause time.Duration, failed *atomic.Int64) (took []time.Duration) {
		var mu sync.Mutex
		end := time.Now().Add(during)
		var wg sync.WaitGroup
		for c := range 8 {
			wg.Go(func() {
				var mine []time.Duration
				for i := c; time.Now().Before(end); i++ {
					began := time.Now()
					if _, err := l.AllowN(ctx(), keys[i%len(keys)], 0); err != nil {
						failed.Add(1)
					}
					mine = append(mine, time.Since(began))
					if pause > 0 {
						<-time.After(pause)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				took = append(took, mine...)
			})
		}
		wg.Wait()
		slices.Sort(took)
		return took
	}
	// pings counts round trips to another master, which depend on the machine alone.
	control := redis.NewClient(&redis.Options{Addr: cluster.Servers[1].Addr(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = control.Close() })
	var slowest time.Duration
	pings := func(during time.Duration) (n float64) {
		for end := time.Now().Add(during); time.Now().Before(end); n++ {
			sent := time.Now()
			must(t, control.Ping(ctx()).Err())
			slowest = max(slowest, time.Since(sent))
		}
		return n
	}
	var failed, refused atomic.Int64
	var own []time.Duration
	var pingsBefore, pingsDuring float64
	var wg sync.WaitGroup
	wg.Go(func() { load(time.Second, here, 5*time.Millisecond, &failed) })
	wg.Go(func() { pingsBefore = pings(time.Second) })
	before := load(time.Second, elsewhere, 0, &failed)
	wg.Wait()
	lose(t, cluster.Servers[0])
	wg.Go(func() { load(time.Second, here, 5*time.Millisecond, new(atomic.Int64)) })
	wg.Go(func() { pings(time.Second) })
	first := load(time.Second, elsewhere, 0, &failed)
	wg.Wait()
	var (
		during []time.Duration
		share  float64
	)
	for range 5 { // the machine may be busier than before; the cost of a lost master would stay
		refused.Store(0)
		wg.Go(func() { pingsDuring = pings(time.Second) })
		wg.Go(func() { own = load(time.Second, here, 5*time.Millisecond, &refused) })
		during = load(time.Second, elsewhere, 0, &failed)
		wg.Wait()
		if share = float64(len(during)) / float64(len(before)) / (pingsDuring / pingsBefore); share >= 0.6 {
			break
		}
	}
	p99 := func(took []time.Duration) time.Duration { return took[len(took)*99/100] }
	t.Logf("timeout %v, slowest PING %v; others: %.0f %% of their throughput beside pings, p99 %v before, %v at first, %v later; "+
		"own: p99 %v, %d of %d refused",
		timeout, slowest, share*100, p99(before), p99(first), p99(during), p99(own), refused.Load(), len(own))
	if n := int(refused.Load()); n != len(own) {
		t.Errorf("%d of %d calls failed without their master", n, len(own))
	}
	var wrong string
	switch {
	case failed.Load() > 0 || share < 0.6:
		wrong = fmt.Sprintf("%d calls of other shards failed, %.0f %% of their throughput is left", failed.Load(), share*100)
	case max(p99(first), p99(during)) > timeout*2/5: // a caller that waits for the lost master waits for the timeout
		wrong = "callers of other shards wait for the lost master"
	case p99(own) > timeout/50: // 1 ms, if the machine does nothing else
		wrong = "its own callers wait"
	default:
		return false
	}
	if slowest > timeout/10 {
		t.Logf("late: %s", wrong)
		return true
	}
	t.Error(wrong)
	return false
}

// A server that refuses writes replies to PING, which must not close the breaker.
func TestAServerThatRefusesWrites(t *testing.T) {
	for name, c := range map[string]struct{ begin, end []any }{
		"a replica":    {[]any{"replicaof", "127.0.0.1", "1"}, []any{"replicaof", "no", "one"}},
		"writes pause": {[]any{"client", "pause", "60000", "write"}, []any{"client", "unpause"}},
		"no replicas":  {[]any{"config", "set", "min-replicas-to-write", "1"}, []any{"config", "set", "min-replicas-to-write", "0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			s := newStore(t, obedient(t, server.Addr(), 10), hasty)
			l, direct := newLimiter(t, s), server.Client()
			newClaim("k", "warm").gets(t, s, store.Granted)
			must(t, direct.Do(ctx(), c.begin...).Err())
			var slow, failed, slowReads, reads atomic.Int64
			late := func(began time.Time) bool { return time.Since(began) > 100*time.Millisecond }
			under, cancel := context.WithTimeout(ctx(), 3*time.Second)
			defer cancel()
			var wg sync.WaitGroup
			for i := range 8 {
				wg.Go(func() {
					for under.Err() == nil {
						began := time.Now()
						var err error
						switch i % 4 {
						case 0:
							_, err = newClaim("other", fmt.Sprint(i)).acquire(s)
						case 1:
							if _, err := s.InspectLease(ctx(), store.LockKind+"jobs", "k"); err == nil { // it mostly works
								reads.Add(1)
								if late(began) {
									slowReads.Add(1)
								}
							} else if late(began) {
								slow.Add(1)
							}
						case 2:
							_, err = newOp(fmt.Sprint("op", i)).begin(s)
						default:
							_, err = l.Allow(ctx(), "k")
						}
						if err != nil {
							failed.Add(1)
							// A call that the breaker refuses is late only if the machine is busy.
							if late(began) && !strings.Contains(err.Error(), "taken to be down") {
								slow.Add(1)
							}
						}
						<-time.After(2 * time.Millisecond)
					}
				})
			}
			wg.Wait()
			// The six callers that write are slow once, and again if replies to the others excuse
			// the server. If the breaker closed, they would be after each of twelve probes.
			if slow.Load() > 20 || failed.Load() < 1000 || slowReads.Load() > 1+reads.Load()/100 {
				t.Errorf("%d calls were slow, and %d failed; %d of %d reads were slow",
					slow.Load(), failed.Load(), slowReads.Load(), reads.Load())
			}
			must(t, direct.Do(ctx(), c.end...).Err())
			eventually(t, 2*time.Second, "it works again", func() bool {
				_, err := l.Allow(ctx(), "k")
				return err == nil
			})
		})
	}
}

// If Redis becomes far away, or is from the start, calls fail only until connections are made.
func TestAServerFarAway(t *testing.T) {
	t.Run("for a while", func(t *testing.T) {
		t.Parallel()
		_, proxy, _, s := behindProxy(t, 5*time.Second, hasty, redisstore.WithoutDenialCache())
		l := newLimiter(t, s)
		_, err := l.AllowN(ctx(), "k", 0)
		must(t, err)
		proxy.Delay(100 * time.Millisecond)
		proxy.CutAll() // connections have to be made
		begin := time.Now()
		var late, all atomic.Int64
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				for time.Since(begin) < 3500*time.Millisecond {
					_, err := l.AllowN(ctx(), fmt.Sprint("k", i), 0)
					if err != nil { // or it would spin
						<-time.After(time.Millisecond)
					}
					if time.Since(begin) > 2*time.Second {
						all.Add(1)
						if err != nil {
							late.Add(1)
							t.Log(err)
						}
					}
				}
			})
		}
		wg.Wait()
		if late.Load() > 0 || all.Load() < 100 {
			t.Errorf("%d of %d calls failed, two seconds after Redis went far away", late.Load(), all.Load())
		}
	})
	for name, start := range map[string]func(*testing.T) (redis.UniversalClient, []*redistest.Proxy){
		"from the start": func(t *testing.T) (redis.UniversalClient, []*redistest.Proxy) {
			proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
			return obedient(t, proxy.Addr(), 10), []*redistest.Proxy{proxy}
		},
		"a Cluster from the start": func(t *testing.T) (redis.UniversalClient, []*redistest.Proxy) {
			return redistest.StartCluster(t).ProxiedClient()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, proxies := start(t)
			for _, proxy := range proxies {
				proxy.Delay(120 * time.Millisecond)
			}
			l := newLimiter(t, newStore(t, client, hasty))
			works := 0
			eventually(t, 5*time.Second, "ten calls in a row work", func() bool {
				if _, err := l.Allow(ctx(), "k"); err != nil {
					works = 0
				} else {
					works++
				}
				return works == 10
			})
		})
	}
}

// A burst of waiters keeps a server busy, which does not open the breaker as long as the server replies
// to a connection of its own within the timeout.
func TestABurstOfWaiters(t *testing.T) {
	server := redistest.Start(t)
	direct := redis.NewClient(&redis.Options{Addr: server.Addr(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = direct.Close() })
	for timeout := 250 * time.Millisecond; timeout < 10*time.Second; timeout *= 2 {
		log := new(logbook)
		s := newStore(t, obedient(t, server.Addr(), 20), redisstore.WithTimeout(timeout), log.option())
		key := timeout.String()
		newClaim(key, "holder").gets(t, s, store.Granted)
		var failed atomic.Int64
		slowest := slowestPing(t, direct, func() {
			together(8000, func(i int) {
				if _, err := newClaim(key, fmt.Sprint(i)).queued().acquire(s); err != nil {
					failed.Add(1)
				}
			})
		})
		t.Logf("%d of 8000 had no reply within %v; the slowest PING took %v", failed.Load(), timeout, slowest)
		if !log.has(tripped) {
			return
		}
		if slowest < timeout/2 {
			t.Fatal("the breaker opened")
		}
	}
	t.Fatal("the machine takes seconds for a PING")
}
