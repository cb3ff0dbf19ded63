package redisstore_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// passedOver is how long the waiters of a dead process may keep others waiting.
const passedOver = 3 * time.Second

var deaths = map[string]func(t *testing.T, p *crowdProcess){
	"killed": func(t *testing.T, p *crowdProcess) {
		must(t, p.Process.Kill())
		_ = p.Wait()
	},
	"stopped": func(t *testing.T, p *crowdProcess) { must(t, p.Process.Signal(syscall.SIGSTOP)) },
	"cut off": func(_ *testing.T, p *crowdProcess) {
		for _, proxy := range p.proxies {
			proxy.BlackHole()
		}
	},
}

// A hundred waiters of a process that is dead, or seems so, delay others together as long as one.
func TestDeadWaiters(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Start(t), redistest.StartCluster(t)
	for name, on := range map[string]struct {
		addrs   []string
		client  func() redis.UniversalClient
		cluster string
	}{
		"server":  {[]string{server.Addr()}, func() redis.UniversalClient { return server.Client() }, ""},
		"cluster": {cluster.Addrs(), func() redis.UniversalClient { return cluster.Client() }, "yes"},
	} {
		for kind := range crowds {
			for death, die := range deaths {
				t.Run(fmt.Sprintf("%s/%s/%s", name, kind, death), func(t *testing.T) {
					t.Parallel()
					key := kind + " " + death
					holder := newCrowd(t, kind, newStore(t, on.client()), key)
					live := newCrowd(t, kind, newStore(t, on.client()), key)
					release, err := holder.all(ctx())
					must(t, err)
					dead := startCrowd(t, kind, key, on.addrs, on.cluster)
					got := live.next(t)
					die(t, dead)
					began := time.Now()
					release()
					within(t, passedOver, began, got)
				})
			}
		}
	}
}

// A failover has lost the withdrawals of a hundred waiters, whose process has died since or does not
// know the requests any more.
func TestWaitersWhoseWithdrawalsAreLost(t *testing.T) {
	t.Parallel()
	for kind := range crowds {
		for _, death := range []string{"alive", "killed", "stopped", "cut off"} {
			t.Run(kind+"/"+death, func(t *testing.T) {
				t.Parallel()
				server := redistest.Start(t)
				direct := server.Client()
				holder := newCrowd(t, kind, newStore(t, server.Client()), "k")
				live := newCrowd(t, kind, newStore(t, server.Client()), "k")
				release, err := holder.all(ctx())
				must(t, err)
				p := startCrowd(t, kind, "k", []string{server.Addr()}, "")
				got := live.next(t)
				image := imageOf(t, direct)
				_, err = fmt.Fprintln(p.stdin)
				must(t, err)
				p.prints(t, "left")
				image.restore(t, direct)
				if n := holder.waiting(); n != crowdSize+1 {
					t.Fatalf("%d wait after the failover", n)
				}
				if die := deaths[death]; die != nil {
					die(t, p)
				}
				began := time.Now()
				release()
				within(t, passedOver, began, got)
			})
		}
	}
}

// The waiters and the leases of a process that shuts down delay no other.
func TestWaitersOfAProcessThatShutsDown(t *testing.T) {
	testpace.Parallel(t)
	server, cluster := redistest.Start(t), redistest.StartCluster(t)
	for name, client := range map[string]func() redis.UniversalClient{
		"server":  func() redis.UniversalClient { return server.Client() },
		"cluster": func() redis.UniversalClient { return cluster.Client() },
	} {
		for kind := range crowds {
			for _, end := range []string{"close", "shutdown"} {
				t.Run(fmt.Sprintf("%s/%s/%s", name, kind, end), func(t *testing.T) {
					key := kind + end
					s := newStore(t, client())
					going, live := newCrowd(t, kind, s, key), newCrowd(t, kind, newStore(t, client()), key)
					_, err := going.all(ctx())
					must(t, err)
					left := going.join(t.Context())
					got := live.next(t)
					began := time.Now()
					if end == "close" {
						wantClosed(t, going.close())
					} else {
						wantClosed(t, s.Shutdown(ctx()))
					}
					closed := time.Now()
					t.Logf("closed after %v", closed.Sub(began))
					within(t, time.Second, closed, got)
					left.Wait()
				})
			}
		}
	}
}
