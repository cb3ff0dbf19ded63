package script

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// probeText writes, as most steps do: a server that replies to PING may still be a replica, have
// too few replicas, or be paused for writes.
const probeText = "return redis.call('SET', KEYS[1], '', 'PX', 1000)"

// recordMiss records that a call ended without a reply, or without a connection.
func (n *Node) recordMiss() {
	n.owner.nodes.refresh()
	n.breaker.Doubt(time.Now())
}

// write runs the probe. The connection may take longer than for a caller; the reply may not.
func (n *Node) write() error {
	owner, began := n.owner, time.Now()
	if n.server == nil { // a node that returns the map of the Cluster works
		return verdict(context.Background(), owner.nodes.requestMap(owner.life, owner.unhurried()))
	}
	c := owner.deadlines.context(context.Background(), n, owner.unhurried(), owner.config.Timeout)
	defer owner.deadlines.release(c)
	err := n.server.Process(c, onceCmd{newEval(c, byText, []byte(probeText), Call{Keys: []string{n.probed}})})
	if err != nil && c.Err() != nil && !redisfault.IsReply(err) {
		err = tooLate(c, &c.sent)
	}
	if owner.nodes.cluster != nil && redisfault.IsReply(err) && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
		err = nil // it works, and the slot of the probe has moved
	}
	switch err = verdict(context.Background(), err); {
	case err == nil:
		n.hear()
	case !redisfault.IsReply(err) && n.repliedSince(began):
		return breaker.ErrNoEvidence
	}
	return err
}

// warm opens a connection in the background, for later calls: a server may be so far away that this
// takes longer than any caller waits. It also completes connections that the client has dialed for
// canceled callers.
func (n *Node) warm() {
	owner, conns := n.owner, 1
	if n.isDown() {
		return
	}
	if n.server != nil {
		conns += int(n.server.PoolStats().IdleConns)
	}
	for range conns {
		if n.warming.Add(1) > int64(n.maxInFlight()) {
			n.warming.Add(-1)
			return
		}
		go func() { // Close does not wait for it: the client reacts late to the end of a context
			defer n.warming.Add(-1)
			c := owner.deadlines.context(owner.life, n, owner.unhurried(), owner.config.Timeout)
			defer owner.deadlines.release(c)
			if n.server != nil {
				_ = n.server.Ping(c).Err()
			} else {
				_ = owner.nodes.requestMap(c, owner.unhurried())
			}
		}()
	}
}
