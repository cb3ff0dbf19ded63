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

// node is one server: the only one, or a master of a Cluster. What is known of one says nothing of the
// others, so each has a breaker, lanes and scripts of its own.
type node struct {
	store   *Store
	client  *redis.Client // nil for a Cluster as a whole
	address string        // for logs
	probed  string        // the key that the probe writes

	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	trip    atomic.Bool           // the next failure opens the breaker
	down    atomic.Pointer[error] // of calls while the breaker is open
	heard   atomic.Int64          // when it last answered a step that may write: see Store.clock
	missed  atomic.Int64          // calls in a row that ended before anything was heard of the server
	asking  atomic.Bool           // a probe is in flight because of them
	overdue atomic.Int64          // calls whose time for the reply is over, and that have not ended yet
	warming atomic.Int64          // connections that are being made ahead
	gone    atomic.Bool           // it is no master any more

	dials    *dialWatch
	answered atomic.Bool // it has answered since a connection was refused

	loading  sync.Mutex
	nextLoad time.Time             // no earlier; loading guards it
	refusal  atomic.Pointer[error] // of the client's password, when scripts were to be loaded
	loaded   atomic.Bool           // it has the scripts
	safe     atomic.Bool           // it evicts nothing

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
	refreshed  atomic.Int64 // when the map was last asked for: see Store.clock
}

const (
	// maxNodes bounds the memory of a Cluster whose masters change. It has 1,000 masters at most.
	maxNodes = 1024
	// refreshEvery is how often the map of a Cluster is asked for while calls fail. The client itself
	// asks once a minute.
	refreshEvery = time.Second
	// refreshTries is how often a refresh asks: each time a node at random, which may be one that is gone.
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

// hashTag returns what of a key decides about its slot.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// of returns the node that has a key, as far as is known. It sends nothing.
func (ns *nodes) of(ctx context.Context, key string) *node {
	if ns.cluster == nil || !ns.mapped.Load() { // the client would ask for the map, for longer than a caller may wait
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
			n.leave()
		}
		clear(ns.masters)
	}
	n := ns.store.newNode(master, key)
	ns.masters[master] = n
	return n
}

// all returns every node that is known.
func (ns *nodes) all() []*node {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	all := []*node{ns.whole}
	for _, n := range ns.masters {
		all = append(all, n)
	}
	return all
}

// know records that a call of the whole Cluster succeeded: the client has the map.
func (ns *nodes) know() {
	if ns.cluster != nil && !ns.mapped.Load() {
		ns.mapped.Store(true)
	}
}

// refresh asks for the map of a Cluster, in the background, at most once in refreshEvery, and forgets the
// nodes that are no masters any more.
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

// ask asks for the map.
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
			n.leave()
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

// leave ends what the node does in the background.
func (n *node) leave() {
	n.gone.Store(true)
	n.dials.stop()
}

// stop ends what nodes do in the background.
func (ns *nodes) stop() {
	for _, n := range ns.all() {
		n.dials.stop()
	}
}

// clock is the time since the store was made.
func (s *Store) clock() int64 { return int64(time.Since(s.made)) }
