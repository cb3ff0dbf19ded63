package script

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
)

// Node is one server: the only one, or a master of a Cluster. Nodes fail independently, so each has
// a breaker, batchers and loaded scripts of its own.
type Node struct {
	// Attached is the value that Config.Attach has returned for the node.
	Attached any

	owner   *Client
	server  *redis.Client // nil for a Cluster as a whole
	address string        // for logs
	probed  string        // the key that the probe writes

	breaker *breaker.Breaker
	heard   atomic.Int64 // last reply to a step that may write: see Client.clock
	wrote   atomic.Bool  // it has taken a write
	doubts  doubts
	warming atomic.Int64 // connections that warm is opening

	dials    *dialWatch
	answered atomic.Bool // it has replied since a connection was refused

	loading  sync.Mutex
	nextLoad time.Time             // no earlier; loading guards it
	refusal  atomic.Pointer[error] // of the client's password, from load
	loaded   atomic.Bool           // it has the scripts
	checked  atomic.Bool           // by Config.CheckServer

	steps *batch.Batcher[*stepRequest]
}

func (c *Client) newNode(server *redis.Client, key string) *Node {
	n := &Node{owner: c, server: server, address: addressOf(c.config.Redis), probed: c.config.ProbeKey}
	if server != nil {
		n.address = server.Options().Addr
	}
	n.breaker, n.steps = n.newBreaker(), n.newSteps()
	n.Attached = c.config.Attach(n)
	if server == nil {
		return n
	}
	if tag := hashTag(key); tag != "" { // the probe must be in a slot of the node
		n.probed += ":{" + tag + "}"
	}
	n.watchDials()
	n.closeIdle() // the watch does not cover them
	return n
}

// hashTag returns the part of a key that determines its slot.
func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// Check returns the reason not to begin anything on the node: see Config.CheckServer.
func (n *Node) Check(ctx context.Context) error {
	if n.checked.Load() {
		return nil
	}
	if err := n.eachServer(ctx, n.owner.config.CheckServer); err != nil {
		return err
	}
	n.checked.Store(true)
	return nil
}

// eachServer calls f for the node's server, or for every master of a Cluster as a whole.
func (n *Node) eachServer(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	if n.server == nil {
		return n.owner.nodes.cluster.ForEachMaster(ctx, f)
	}
	return f(ctx, n.server)
}

// maxInFlight returns the maximum of calls in flight of a batcher: half of the connections.
func (n *Node) maxInFlight() int { return max(batch.MinInFlight, n.owner.config.PoolSize/2) }

// retire ends the background work of a node that is no longer a master.
func (n *Node) retire() {
	n.breaker.Stop()
	n.dials.stop()
}
