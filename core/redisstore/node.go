package redisstore

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
)

// node is one server: the only one, or a master of a Cluster. Nodes fail independently, so each has
// a breaker, lanes and loaded scripts of its own.
type node struct {
	store   *Store
	client  *redis.Client // nil for a Cluster as a whole
	address string        // for logs
	probed  string        // the key that the probe writes

	breaker       *gobreaker.TwoStepCircuitBreaker[struct{}]
	trip          atomic.Bool           // the next failure opens the breaker
	down          atomic.Pointer[error] // the error of calls while the breaker is open
	heard         atomic.Int64          // last reply to a step that may write: see Store.clock
	missed        atomic.Int64          // calls in a row that ended without a reply
	probingMisses atomic.Bool           // a probe is in flight because of them
	overdue       atomic.Int64          // calls past their deadline for the reply that have not ended yet
	warming       atomic.Int64          // connections that warm is opening
	gone          atomic.Bool           // no longer a master

	dials    *dialWatch
	answered atomic.Bool // it has replied since a connection was refused

	loading  sync.Mutex
	nextLoad time.Time             // no earlier; loading guards it
	refusal  atomic.Pointer[error] // of the client's password, on loading scripts
	loaded   atomic.Bool           // it has the scripts
	safe     atomic.Bool           // its eviction policy was checked

	decisions *lane[*decision]
	steps     *lane[*companion]
}

// nodes are the servers of a store.
type nodes struct {
	store   *Store
	cluster *redis.ClusterClient // nil for a single server
	// whole is the single server; of a Cluster, it stands for all masters until their map is known.
	whole  *node
	mapped atomic.Bool // the client has the Cluster's map

	mu      sync.RWMutex
	masters map[*redis.Client]*node

	refreshing atomic.Bool
	refreshed  atomic.Int64 // when the map was last requested: see Store.clock
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

func (ns *nodes) init(s *Store) {
	ns.store = s
	ns.cluster, _ = s.client.(*redis.ClusterClient)
	single, _ := s.client.(*redis.Client)
	ns.whole = s.newNode(single, "")
	ns.masters = make(map[*redis.Client]*node)
}

func (s *Store) newNode(client *redis.Client, key string) *node {
	n := &node{store: s, client: client, address: addressOf(s.client), probed: s.config.prefix + ":probe"}
	n.breaker = n.newBreaker()
	if client == nil {
		return n
	}
	n.address = client.Options().Addr
	if tag := hashTag(key); tag != "" { // the probe must be in a slot of the node
		n.probed += ":{" + tag + "}"
	}
	n.decisions, n.steps = s.newDecisions(n), s.newSteps(n)
	n.watchDials()
	return n
}

// hashTag returns the part of a key that determines its slot.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// of returns the node of a key, as far as it is known. It sends nothing.
func (ns *nodes) of(ctx context.Context, key string) *node {
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

func (ns *nodes) add(master *redis.Client, key string) *node {
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
	n := ns.store.newNode(master, key)
	ns.masters[master] = n
	return n
}

// all returns all known nodes.
func (ns *nodes) all() []*node {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	all := []*node{ns.whole}
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
	if last != 0 && ns.store.clock()-last < int64(refreshEvery) || !ns.refreshing.CompareAndSwap(false, true) {
		return
	}
	ns.refreshed.Store(ns.store.clock())
	if !ns.store.start(func() {
		defer ns.refreshing.Store(false)
		for range refreshTries {
			if ns.ask(ns.store.life, ns.store.config.timeout) == nil || ns.store.life.Err() != nil {
				return
			}
		}
	}) {
		ns.refreshing.Store(false)
	}
}

// ask requests the map.
func (ns *nodes) ask(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var (
		mu      sync.Mutex
		masters = make(map[*redis.Client]bool)
	)
	err := ns.cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters[master] = true
		return nil
	})
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
		if !masters[master] {
			n.retire()
			delete(ns.masters, master)
		}
	}
	return nil
}

// eachClient calls f for the node; for every master of a Cluster whose map was not known.
func (n *node) eachClient(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	if n.client == nil {
		return n.store.nodes.cluster.ForEachMaster(ctx, f)
	}
	return f(ctx, n.client)
}

// retire ends the background work of a node that is no longer a master.
func (n *node) retire() {
	n.gone.Store(true)
	n.dials.stop()
}

// stop ends the background work of all nodes.
func (ns *nodes) stop() {
	for _, n := range ns.all() {
		n.dials.stop()
	}
}

// clock returns the time since the store was created.
func (s *Store) clock() int64 { return int64(time.Since(s.made)) }
