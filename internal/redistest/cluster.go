package redistest

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a Redis Cluster.
type Cluster struct {
	Servers  []*Server // the masters
	Replicas []*Server // of the masters with the same index; none unless AddReplicas was called
	t        testing.TB
	args     []string
	bus      int // of the first master
}

const slots = 16384

// StartCluster starts three masters that share the slots, and that live until the test ends. It
// skips or fails the test as [Start] does.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, args: args}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("redis cluster: %v", err)
		}
	}
	const masters = 3
	var (
		buses   []int
		clients []*redis.Client
	)
	for i := range masters {
		server, bus := c.startNode()
		client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr()})
		defer func() { _ = client.Close() }()
		c.Servers, buses, clients = append(c.Servers, server), append(buses, bus), append(clients, client)
		must(client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
		must(client.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err())
	}
	for i, server := range c.Servers[1:] {
		must(clients[0].Do(ctx, "cluster", "meet", "127.0.0.1", server.port, buses[i+1]).Err())
	}
	c.bus = buses[0]
	for _, client := range clients {
		for {
			info, err := client.ClusterInfo(ctx).Result()
			must(err)
			if strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)) {
				break
			}
			select {
			case <-time.After(10 * time.Millisecond):
			case <-ctx.Done():
				must(ctx.Err())
			}
		}
	}
	return c
}

// startNode starts a server that knows no other one yet.
func (c *Cluster) startNode() (server *Server, bus int) {
	c.t.Helper()
	bus, err := freePort()
	if err != nil {
		c.t.Fatal(err)
	}
	return Start(c.t, append([]string{
		"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "2000",
		"--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0",
	}, c.args...)...), bus
}

// AddReplicas gives every master a replica, and returns when each has all that its master has.
func (c *Cluster) AddReplicas() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	until := func(what string, done func() bool) {
		c.t.Helper()
		for !done() {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				c.t.Fatalf("redis cluster: %s: %v", what, ctx.Err())
			}
		}
	}
	first := c.Servers[0]
	for _, master := range c.Servers {
		replica, _ := c.startNode()
		client, id := replica.Client(), master.Client().ClusterMyID(ctx).Val()
		if err := client.Do(ctx, "cluster", "meet", "127.0.0.1", first.port, c.bus).Err(); err != nil {
			c.t.Fatalf("redis cluster: %v", err)
		}
		until("the replica knows its master", func() bool { return client.ClusterReplicate(ctx, id).Err() == nil })
		until("the replica is in step", func() bool {
			return strings.Contains(client.Info(ctx, "replication").Val(), "master_link_status:up")
		})
		c.Replicas = append(c.Replicas, replica)
	}
	for _, server := range append(slices.Clone(c.Servers), c.Replicas...) {
		client := server.Client()
		until("everybody knows the replicas", func() bool {
			ranges, err := client.Do(ctx, "cluster", "slots").Slice() // each with first, last, master and replicas
			return err == nil && len(ranges) == len(c.Servers) && !slices.ContainsFunc(ranges, func(r any) bool {
				fields, ok := r.([]any)
				return !ok || len(fields) < 4
			})
		})
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
