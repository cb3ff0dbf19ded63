package redisstore_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// pools are the pools of these tests: how many connections a node has, whether some are older than
// the store, and how many callers there are.
var pools = []pool{{20, false, 1}, {20, true, 8}, {60, false, 8}, {60, true, 1}, {160, false, 1}, {160, true, 8}}

// fewPools are one of each size, for tests of what the size does not change.
var fewPools = []pool{pools[0], pools[3], pools[5]}

type pool struct {
	conns   int
	shared  bool
	callers int
}

func (p pool) String() string {
	return fmt.Sprintf("%d connections, shared %v", p.conns, p.shared)
}

// noNotices has a client's connections not race for that setting.
var noNotices = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// staleTimeout is the timeout of the stores.
var staleTimeout = testpace.Scale(500 * time.Millisecond)

// few is how many calls may fail because connections are stale, however many there are.
const few = 5

// staysUp runs callers that lock and unlock while connections of the pool go stale. It fails the
// test if, after goStale has returned, more than most calls fail, or any call fails after four
// timeouts, which is a second by default. When goStale returns, the server side has moved, and a
// new connection reaches a working server. Calls that fail until then are counted in failed.
func (p pool) staysUp(t *testing.T, client redis.UniversalClient, fill func(), goStale func(failed *atomic.Int64), most int64) {
	t.Helper()
	if p.shared {
		fill()
	}
	log := new(logbook)
	s := newStore(t, client, log.option(), redisstore.WithTimeout(staleTimeout))
	eventually(t, 5*time.Second, "it works", func() bool { return lockAndUnlock(s, 0) == nil })
	fill()
	for n := range int64(20) { // of every node
		eventually(t, 5*time.Second, "it works", func() bool { return lockAndUnlock(s, n) == nil })
	}
	var failed, at, key atomic.Int64
	began, over := time.Now(), make(chan struct{})
	var wg sync.WaitGroup
	for range p.callers {
		wg.Go(func() {
			for {
				if err := lockAndUnlock(s, key.Add(1)); err != nil {
					failed.Add(1)
					at.Store(int64(time.Since(began)))
				}
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	var stalled atomic.Int64 // the control: for how long the machine has not run the test
	wg.Go(func() {
		for asked := time.Now(); ; asked = time.Now() {
			select {
			case <-over:
				return
			case <-time.After(5 * time.Millisecond):
				stalled.Store(max(stalled.Load(), int64(time.Since(asked))))
			}
		}
	})
	goStale(&failed)
	before := failed.Load()
	moved := time.Since(began)
	<-time.After(9 * staleTimeout / 2)
	close(over)
	wg.Wait()
	n, last := failed.Load()-before, time.Duration(at.Load())-moved
	t.Logf("%d calls failed before, %d after, the last after %v", before, n, last)
	isOpen := strings.Count(log.String(), tripped) > strings.Count(log.String(), "replies again")
	if n > most || n > 0 && last > 4*staleTimeout || isOpen {
		// The store takes a reply that arrives so late for one of a connection that still works.
		if d := time.Duration(stalled.Load()); d > staleTimeout/20 {
			t.Skipf("the machine has not run the test for %v", d)
		}
		t.Errorf("%d calls failed, the last after %v; the breaker is open: %v", n, last, isOpen)
	}
	for i := range 20 {
		must(t, client.Set(ctx(), fmt.Sprint("app", i), 1, 0).Err())
	}
}

// fillPool has a client open n connections, some at a time: it waits for each no longer than for a
// reply.
func fillPool(t *testing.T, client *redis.Client, n int) {
	t.Helper()
	eventually(t, 30*time.Second, fmt.Sprint("there are idle connections: ", n), func() bool {
		conns := make([]*redis.Conn, n)
		var wg sync.WaitGroup
		some := make(chan struct{}, 16)
		for i := range conns {
			conns[i] = client.Conn()
			some <- struct{}{}
			wg.Go(func() {
				_ = conns[i].Ping(ctx()).Err() // one that fails is tried again
				<-some
			})
		}
		wg.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
		return int(client.PoolStats().IdleConns) >= n
	})
}

// An address leads to another server, or the connections to it die and nothing ends them.
func TestStaleConnections(t *testing.T) {
	for what, goStale := range map[string]func(t *testing.T, proxy *redistest.Proxy, old, promoted *redistest.Server){
		"a replica": func(t *testing.T, proxy *redistest.Proxy, old, promoted *redistest.Server) {
			proxy.MoveTo(promoted.Addr())
			host, port, _ := net.SplitHostPort(promoted.Addr())
			must(t, old.Client().ReplicaOf(ctx(), host, port).Err())
		},
		"nowhere": func(_ *testing.T, proxy *redistest.Proxy, _, _ *redistest.Server) { proxy.Strand() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			for _, p := range pools {
				t.Run(p.String(), func(t *testing.T) {
					old, promoted := redistest.Start(t), redistest.Start(t)
					proxy := redistest.NewProxy(t, old.Addr())
					client := redis.NewClient(&redis.Options{
						Addr: proxy.Addr(), PoolSize: 200, MinIdleConns: 4, ContextTimeoutEnabled: true, MaintNotificationsConfig: noNotices,
					})
					t.Cleanup(func() { _ = client.Close() })
					p.staysUp(t, client, func() { fillPool(t, client, p.conns) }, func(*atomic.Int64) { goStale(t, proxy, old, promoted) }, few)
				})
			}
		})
	}
}

// Connections die, and the client waits for replies for less time than the store does.
func TestSilentConnectionsOfAnImpatientClient(t *testing.T) {
	t.Parallel()
	for _, p := range fewPools {
		t.Run(p.String(), func(t *testing.T) {
			proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
			client := redis.NewClient(&redis.Options{
				Addr: proxy.Addr(), PoolSize: 200, MinIdleConns: 4, ContextTimeoutEnabled: true, MaintNotificationsConfig: noNotices,
				ReadTimeout: staleTimeout / 4,
			})
			t.Cleanup(func() { _ = client.Close() })
			p.staysUp(t, client, func() { fillPool(t, client, p.conns) }, func(*atomic.Int64) { proxy.Strand() }, few)
		})
	}
}

// Connections die while calls are in flight on several of them, some of which were heard a moment
// before: all of these calls are sent again. The first of them lost its reply while another
// connection still worked.
func TestCallsInFlightOnSilentConnections(t *testing.T) {
	t.Parallel()
	timeout := testpace.Scale(2 * time.Second)
	proxy := redistest.NewProxy(t, redistest.Start(t).Addr())
	client := redis.NewClient(&redis.Options{
		Addr: proxy.Addr(), PoolSize: 20, ContextTimeoutEnabled: true, MaintNotificationsConfig: noNotices,
	})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client, redisstore.WithTimeout(timeout))
	eventually(t, 5*time.Second, "it works", func() bool { return lockAndUnlock(s, 0) == nil })
	fillPool(t, client, 10)
	var calls sync.WaitGroup
	sent := func(n int) {
		before := proxy.Seen("evalsha")
		calls.Go(func() {
			if _, err := newClaim(fmt.Sprint("k", n), "holder").acquire(s); err != nil {
				t.Error(err)
			}
		})
		eventually(t, 5*time.Second, "it is sent", func() bool { return proxy.Seen("evalsha") > before })
	}
	proxy.LoseReplies("evalsha", 1, redistest.Silence)
	sent(1)
	must(t, lockAndUnlock(s, 2))
	proxy.Strand()
	sent(3)
	sent(4)
	calls.Wait()
}

// dialed are the connections of a client that are open.
type dialed struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

func (d *dialed) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		conn = &dialedConn{conn, d}
		d.open[conn] = true
	}
	return conn, err
}

// conns returns the open connections.
func (d *dialed) conns() map[net.Conn]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.open)
}

type dialedConn struct {
	net.Conn
	of *dialed
}

func (c *dialedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// New closes the client's idle connections, which the store does not watch. Some were never used:
// the client opened them in advance.
func TestNewClosesIdleConnections(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	for _, used := range []int{0, 10} {
		t.Run(fmt.Sprint(used, " used"), func(t *testing.T) {
			d := &dialed{open: make(map[net.Conn]bool)}
			client := redis.NewClient(&redis.Options{
				Addr: server.Addr(), Dialer: d.dial, PoolSize: 20, MinIdleConns: 4, ContextTimeoutEnabled: true,
				MaintNotificationsConfig: noNotices,
			})
			t.Cleanup(func() { _ = client.Close() })
			if used > 0 {
				fillPool(t, client, used)
			}
			eventually(t, 5*time.Second, "it has connections in advance", func() bool {
				n := int(client.PoolStats().IdleConns)
				return n >= used+4 && n == len(d.conns())
			})
			before := d.conns()
			newStore(t, client)
			left := 0
			for conn := range d.conns() {
				if before[conn] {
					left++
				}
			}
			if left > 0 {
				t.Errorf("%d of %d connections are open", left, len(before))
			}
		})
	}
}

// dialer is how a client dials.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// through dials the proxies of some addresses, and others themselves.
func through(proxies map[string]*redistest.Proxy) dialer {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if p := proxies[addr]; p != nil {
			addr = p.Addr()
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

// behindSentinel returns a client with a large pool.
func behindSentinel(s *redistest.Sentinel, sentinel string, dial dialer) *redis.Client {
	return s.Client(func(o *redis.FailoverOptions) {
		o.PoolSize, o.MinIdleConns, o.Dialer, o.SentinelAddrs = 200, 4, dial, []string{sentinel}
		o.Protocol = 2                       // with which it has no such notices
		o.ReadTimeout, o.WriteTimeout = 0, 0 // the client's defaults, longer than the store's timeout
	})
}

// Behind Sentinel few calls fail after a failover that leaves the old master alive, as a replica
// with its clients' connections open. They are counted from when the sentinel names the new master,
// and the old one takes no writes. The client closes its connections if the sentinel's push
// arrives.
func TestStaleConnectionsBehindSentinel(t *testing.T) {
	t.Parallel()
	for _, push := range []bool{true, false} {
		for _, p := range pools {
			t.Run(fmt.Sprintf("%v, push %v", p, push), func(t *testing.T) {
				s := redistest.StartSentinel(t)
				s.SetDownAfter(time.Minute)
				proxy := redistest.NewProxy(t, s.SentinelAddr())
				if !push {
					proxy.Pushes(func(string, func(string)) {})
				}
				client := behindSentinel(s, proxy.Addr(), nil)
				p.staysUp(t, client, func() { fillPool(t, client, p.conns) }, func(*atomic.Int64) {
					s.Promote()
					host, port, _ := net.SplitHostPort(s.Replica.Addr())
					must(t, s.Master.Client().ReplicaOf(ctx(), host, port).Err())
				}, few)
			})
		}
	}
}

// A master that hangs is replaced while its connections are silent, and the breaker is open: it
// closes in time after the sentinel names the new master.
func TestAMasterBehindSentinelHangs(t *testing.T) {
	t.Parallel()
	for _, p := range fewPools {
		t.Run(p.String(), func(t *testing.T) {
			s := redistest.StartSentinel(t)
			s.SetDownAfter(time.Minute)
			client := behindSentinel(s, s.SentinelAddr(), nil)
			p.staysUp(t, client, func() { fillPool(t, client, p.conns) }, func(failed *atomic.Int64) {
				stopped(t, s.Master)
				eventually(t, 30*time.Second, "a call fails", func() bool { return failed.Load() > 0 })
				s.SetDownAfter(500 * time.Millisecond)
				s.AwaitPromotion()
			}, math.MaxInt64)
		})
	}
}

// Connections to a master behind Sentinel die, and nothing ends them. New ones work.
func TestSilentConnectionsBehindSentinel(t *testing.T) {
	t.Parallel()
	s := redistest.StartSentinel(t)
	s.SetDownAfter(time.Minute)
	for _, p := range fewPools {
		t.Run(p.String(), func(t *testing.T) {
			proxy := redistest.NewProxy(t, s.Master.Addr())
			client := behindSentinel(s, s.SentinelAddr(), through(map[string]*redistest.Proxy{s.Master.Addr(): proxy}))
			must(t, client.Ping(ctx()).Err()) // it then has the master's address, and closes other connections
			p.staysUp(t, client, func() { fillPool(t, client, p.conns) }, func(*atomic.Int64) { proxy.Strand() }, few)
		})
	}
}

// ofCluster returns a client with large pools, and what fills them.
func (p pool) ofCluster(t *testing.T, cluster *redistest.Cluster, dial dialer) (client *redis.ClusterClient, fill func()) {
	t.Helper()
	client = redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cluster.Addrs(), PoolSize: 200, MinIdleConns: 4, ContextTimeoutEnabled: true, Dialer: dial,
		MaintNotificationsConfig: noNotices,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client, func() {
		must(t, client.ForEachMaster(ctx(), func(_ context.Context, master *redis.Client) error {
			fillPool(t, master, p.conns)
			return nil
		}))
	}
}

// A replica of a Cluster takes over from its master on command, and the master becomes its replica,
// with its clients' connections open. Calls are counted from when both have said so.
func TestStaleConnectionsOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	cluster.AddReplicas()
	for i, p := range pools {
		t.Run(p.String(), func(t *testing.T) {
			client, fill := p.ofCluster(t, cluster, nil)
			old, promoted := cluster.Servers[i%3], cluster.Replicas[i%3]
			if i >= 3 { // back again
				old, promoted = promoted, old
			}
			role := func(server *redistest.Server, role string) bool {
				return strings.Contains(server.Client().Info(ctx(), "replication").Val(), "role:"+role)
			}
			eventually(t, 30*time.Second, "the replica is in step", func() bool {
				return strings.Contains(promoted.Client().Info(ctx(), "replication").Val(), "master_link_status:up")
			})
			p.staysUp(t, client, fill, func(*atomic.Int64) {
				must(t, promoted.Client().ClusterFailover(ctx()).Err())
				eventually(t, 30*time.Second, "the replica has taken over", func() bool {
					return role(promoted, "master") && role(old, "slave")
				})
			}, few)
		})
	}
}

// Connections to a master of a Cluster die, and nothing ends them. New ones work.
func TestSilentConnectionsOfACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for _, p := range fewPools {
		t.Run(p.String(), func(t *testing.T) {
			proxy := redistest.NewProxy(t, cluster.Servers[0].Addr())
			client, fill := p.ofCluster(t, cluster, through(map[string]*redistest.Proxy{cluster.Servers[0].Addr(): proxy}))
			p.staysUp(t, client, fill, func(*atomic.Int64) { proxy.Strand() }, few)
		})
	}
}
