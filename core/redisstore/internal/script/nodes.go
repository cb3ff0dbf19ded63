package script

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// nodes are the servers of a client.
type nodes struct {
	owner   *Client
	cluster *redis.ClusterClient // nil for a single server
	// whole is the single server. In a Cluster it stands for all masters until their map is known.
	whole  *Node
	mapped atomic.Bool // the client has the Cluster's map

	mu      sync.RWMutex
	masters map[*redis.Client]*Node

	refreshing atomic.Bool
	refreshed  atomic.Int64 // when the map was last requested: see Client.clock
}

const (
	// maxNodes bounds the memory of a Cluster whose masters change. It has 1,000 masters at most.
	maxNodes = 1024
	// refreshEvery is how often the map of a Cluster is requested while calls fail. The client
	// itself does so once a minute.
	refreshEvery = time.Second
	// refreshTries is the number of requests of a refresh: each goes to a random node, which may be
	// down.
	refreshTries = 3
)

func (ns *nodes) init(c *Client) {
	ns.owner = c
	ns.cluster, _ = c.config.Redis.(*redis.ClusterClient)
	single, _ := c.config.Redis.(*redis.Client)
	ns.whole = c.newNode(single, "")
	ns.masters = make(map[*redis.Client]*Node)
}

// Node returns the node of a key, as far as it is known. It sends nothing.
func (c *Client) Node(ctx context.Context, key string) *Node { return c.nodes.of(ctx, key) }

// Whole returns the single server, or the node that stands for all of a Cluster.
func (c *Client) Whole() *Node { return c.nodes.whole }

func (ns *nodes) of(ctx context.Context, key string) *Node {
	if ns.cluster == nil || !ns.mapped.Load() { // the client would request the map, for longer than a caller may wait
		return ns.whole
	}
	master, err := ns.cluster.MasterForKey(ctx, key)
	if err != nil {
		return ns.whole
	}
	ns.mu.RLock()
	n := ns.masters[master]
	ns.mu.RUnlock()
	if n == nil {
		n = ns.add(master, key)
	}
	return n
}

func (ns *nodes) add(master *redis.Client, key string) *Node {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if n := ns.masters[master]; n != nil {
		return n
	}
	if len(ns.masters) >= maxNodes {
		for _, n := range ns.masters {
			n.retire()
		}
		clear(ns.masters)
	}
	n := ns.owner.newNode(master, key)
	ns.masters[master] = n
	return n
}

// Nodes returns all known nodes.
func (c *Client) Nodes() []*Node {
	ns := &c.nodes
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	all := []*Node{ns.whole}
	for _, n := range ns.masters {
		all = append(all, n)
	}
	return all
}

// recordMap records that a call on the whole Cluster succeeded: the client has the map.
func (ns *nodes) recordMap() {
	if ns.cluster != nil && !ns.mapped.Load() {
		ns.mapped.Store(true)
	}
}

// refresh requests the map of a Cluster in the background, at most once in refreshEvery, and
// removes nodes that are no longer masters.
func (ns *nodes) refresh() {
	if ns.cluster == nil {
		return
	}
	last := ns.refreshed.Load()
	if last != 0 && ns.owner.clock()-last < int64(refreshEvery) || !ns.refreshing.CompareAndSwap(false, true) {
		return
	}
	ns.refreshed.Store(ns.owner.clock())
	if !ns.owner.Start(func() {
		defer ns.refreshing.Store(false)
		for range refreshTries {
			if ns.requestMap(ns.owner.life, ns.owner.config.Timeout) == nil || ns.owner.life.Err() != nil {
				return
			}
		}
	}) {
		ns.refreshing.Store(false)
	}
}

// requestMap requests the map.
func (ns *nodes) requestMap(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	masters, err := ns.mastersNow(ctx)
	if err == nil && ctx.Err() != nil { // the map is the old one
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	ns.mapped.Store(true)
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for master, n := range ns.masters {
		if !slices.Contains(masters, master) {
			n.retire()
			delete(ns.masters, master)
		}
	}
	return nil
}

// mastersNow returns the masters of a Cluster.
func (ns *nodes) mastersNow(ctx context.Context) (masters []*redis.Client, err error) {
	var mu sync.Mutex
	err = ns.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters = append(masters, master)
		return nil
	})
	return masters, err
}

// stop ends the background work of all nodes.
func (ns *nodes) stop() {
	for _, n := range ns.owner.Nodes() {
		n.dials.stop()
	}
}

// Masters returns a client for each master.
func (c *Client) Masters(ctx context.Context) ([]*redis.Client, error) {
	if c.nodes.cluster == nil {
		return []*redis.Client{c.nodes.whole.server}, nil
	}
	return Do(ctx, c.nodes.whole, Command{Operation: route}, c.nodes.mastersNow)
}
