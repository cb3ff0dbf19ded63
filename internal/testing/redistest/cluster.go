package redistest

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// Cluster is a Redis Cluster.
type Cluster struct {
	Servers  []*Server // the masters
	Replicas []*Server // of the masters with the same index; none unless AddReplicas was called
	t        testing.TB
	start    func(t testing.TB, args ...string) *Server
	args     []string
}

const (
	masters = 3
	slots   = 16384
)

// StartCluster starts three masters that share the slots, and ends them with the test. It skips or
// fails the test as [Start] does. It takes two seconds, for which a master waits before it accepts
// writes.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, start: Start, args: args}
	c.startMasters()
	return c
}

// StartClusterWithClocks is StartCluster with masters whose clocks can be set. It skips the test if
// there is no C compiler.
func StartClusterWithClocks(t testing.TB) (c *Cluster, clocks []*Clock) {
	t.Helper()
	c = &Cluster{t: t, start: func(t testing.TB, args ...string) *Server {
		server, clock := StartWithClock(t, args...)
		clocks = append(clocks, clock)
		return server
	}}
	c.startMasters()
	return c, clocks
}

func (c *Cluster) startMasters() {
	c.t.Helper()
	ctx := c.t.Context()
	var buses []int
	for i := range masters {
		server, bus := c.startNode()
		client := server.Client()
		c.must(client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
		c.must(client.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err())
		c.Servers, buses = append(c.Servers, server), append(buses, bus)
	}
	for i, server := range c.Servers {
		c.introduce(server, buses[i], c.Servers[:i]...)
	}
	for _, server := range c.Servers {
		client := server.Client()
		until(c.t, "all slots are served", func() bool {
			info := client.ClusterInfo(ctx).Val()
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots))
		})
	}
}

// startNode starts a server without other nodes, and returns its port for them.
func (c *Cluster) startNode() (server *Server, bus int) {
	c.t.Helper()
	bus, err := testproc.FreePort()
	c.must(err)
	return c.start(c.t, append([]string{
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "2000",
		"--cluster-require-full-coverage", "no",
	}, c.args...)...), bus
}

// introduce joins a server to other nodes, which would find it by gossip after seconds.
func (c *Cluster) introduce(server *Server, bus int, others ...*Server) {
	c.t.Helper()
	for _, other := range others {
		c.must(other.Client().Do(c.t.Context(), "cluster", "meet", "127.0.0.1", server.port, bus).Err())
	}
}

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatalf("redis cluster: %v", err)
	}
}

// AddReplicas gives every master a replica, and returns when each is in sync.
func (c *Cluster) AddReplicas() {
	c.t.Helper()
	ctx := c.t.Context()
	for range c.Servers {
		replica, bus := c.startNode()
		c.introduce(replica, bus, slices.Concat(c.Servers, c.Replicas)...)
		c.Replicas = append(c.Replicas, replica)
	}
	for i, replica := range c.Replicas {
		client, id := replica.Client(), c.Servers[i].Client().ClusterMyID(ctx).Val()
		until(c.t, "the replica has its master", func() bool { return client.ClusterReplicate(ctx, id).Err() == nil })
	}
	for _, replica := range c.Replicas {
		client := replica.Client()
		until(c.t, "the replica is in step", func() bool {
			return strings.Contains(client.Info(ctx, "replication").Val(), "master_link_status:up")
		})
	}
	for _, server := range slices.Concat(c.Servers, c.Replicas) {
		client := server.Client()
		until(c.t, "every node has the replicas", func() bool {
			ranges, err := client.Do(ctx, "cluster", "slots").Slice() // each with first, last, master and replicas
			return err == nil && len(ranges) == len(c.Servers) && !slices.ContainsFunc(ranges, func(r any) bool {
				fields, ok := r.([]any)
				return !ok || len(fields) < 4
			})
		})
	}
}

// MoveSlots moves the slots that have keys from one master to another, while they are used.
func (c *Cluster) MoveSlots(from, to *Server) {
	c.t.Helper()
	ctx, source, target := c.t.Context(), from.Client(), to.Client()
	for {
		key, err := source.RandomKey(ctx).Result()
		if errors.Is(err, redis.Nil) {
			return
		}
		c.must(err)
		slot, owner := source.ClusterKeySlot(ctx, key).Val(), target.ClusterMyID(ctx).Val()
		c.must(target.Do(ctx, "cluster", "setslot", slot, "importing", source.ClusterMyID(ctx).Val()).Err())
		c.must(source.Do(ctx, "cluster", "setslot", slot, "migrating", owner).Err())
		for {
			keys, err := source.ClusterGetKeysInSlot(ctx, int(slot), 100).Result()
			c.must(err)
			if len(keys) == 0 {
				break
			}
			migrate := []any{"migrate", "127.0.0.1", to.port, "", 0, 1000, "keys"}
			for _, key := range keys {
				migrate = append(migrate, key)
			}
			c.must(source.Do(ctx, migrate...).Err())
		}
		// The new owner first: the old one sends clients there.
		for _, server := range append([]*Server{to, from}, c.Servers...) {
			c.must(server.Client().Do(ctx, "cluster", "setslot", slot, "node", owner).Err())
		}
	}
}

// Addrs are the addresses of the masters.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// Client returns a client of the cluster with a short time-out, closed when the test ends.
func (c *Cluster) Client() *redis.ClusterClient { return c.client(nil, 500*time.Millisecond) }

// ProxiedClient returns a client with a proxy in front of every master, which waits for long.
func (c *Cluster) ProxiedClient() (*redis.ClusterClient, []*Proxy) {
	proxies := make([]*Proxy, len(c.Servers))
	by := make(map[string]string)
	for i, s := range c.Servers {
		proxies[i] = NewProxy(c.t, s.Addr())
		by[s.Addr()] = proxies[i].Addr()
	}
	return c.client(func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, by[addr])
	}, 5*time.Second), proxies
}

func (c *Cluster) client(dial func(context.Context, string, string) (net.Conn, error), timeout time.Duration) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ContextTimeoutEnabled: true,
		Addrs:                 c.Addrs(), Dialer: dial, ReadTimeout: timeout, WriteTimeout: timeout,
	})
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}
