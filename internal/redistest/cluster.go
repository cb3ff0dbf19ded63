package redistest

import (
	"context"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Cluster is a Redis Cluster of masters without replicas.
type Cluster struct {
	Servers []*Server
	t       testing.TB
}

const slots = 16384

// StartCluster starts three masters that share the slots, and that live until the test ends. It
// skips or fails the test as [Start] does.
func StartCluster(t testing.TB, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
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
		bus, err := freePort()
		must(err)
		server := Start(t, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-node-timeout", "2000",
			"--cluster-require-full-coverage", "no",
		}, args...)...)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer func() { _ = client.Close() }()
		c.Servers, buses, clients = append(c.Servers, server), append(buses, bus), append(clients, client)
		must(client.Do(ctx, "cluster", "set-config-epoch", i+1).Err())
		must(client.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err())
	}
	for i, server := range c.Servers[1:] {
		must(clients[0].Do(ctx, "cluster", "meet", "127.0.0.1", server.port, buses[i+1]).Err())
	}
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

// Addrs are the addresses of the masters.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.Servers))
	for i, s := range c.Servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// Client returns a client of the cluster with a short time-out, closed when the test ends.
func (c *Cluster) Client() *redis.ClusterClient { return c.client(nil) }

// ProxiedClient is Client with a proxy in front of every master.
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
	}), proxies
}

func (c *Cluster) client(dial func(context.Context, string, string) (net.Conn, error)) *redis.ClusterClient {
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: c.Addrs(), Dialer: dial, ReadTimeout: 500 * time.Millisecond, WriteTimeout: 500 * time.Millisecond,
	})
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}
