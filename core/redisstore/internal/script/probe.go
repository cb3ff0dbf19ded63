package script

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

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

// probe probes the node over a new connection. If that works, it drops the stale connections of the
// pool.
func (n *Node) probe() error {
	owner, began := n.owner, time.Now()
	if n.server == nil { // a node that returns the map of the Cluster works
		return verdict(owner.nodes.requestMap(owner.life, owner.unhurried()))
	}
	asked := n.dials.clock()
	heard, err := n.writeAnew()
	switch means := verdict(err); {
	case means == nil && n.isDown() && n.poolDials() != nil:
		return breaker.ErrNoEvidence
	case means == nil:
		n.dropStale(asked)
		n.hear()
		return nil
	case !redisfault.IsReply(err) && (n.repliedSince(began) || !heard && n.dials.heardSince(asked)): // it is busy
		return breaker.ErrNoEvidence
	default:
		return means
	}
}

// writeAnew writes on a new connection, and closes it. Each reply has the time that a call has for
// it. A dial has twice that time, since it may include a TLS handshake. heard reports whether any
// data arrived.
func (n *Node) writeAnew() (heard bool, err error) {
	timeout, o := n.replyIn(), n.server.Options()
	ctx, cancel := context.WithTimeout(n.owner.life, 10*timeout)
	defer cancel()
	var own atomic.Pointer[watchedConn] // dialed in the background
	client := redis.NewClient(&redis.Options{
		Network: o.Network, Addr: o.Addr, OnConnect: o.OnConnect, TLSConfig: o.TLSConfig,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := o.Dialer(ctx, network, address)
			if err != nil {
				return nil, err
			}
			conn, watched := n.dials.watch(conn)
			own.Store(watched)
			return conn, nil
		},
		Protocol: o.Protocol, DB: o.DB, Username: o.Username, Password: o.Password,
		CredentialsProvider: o.CredentialsProvider, CredentialsProviderContext: o.CredentialsProviderContext,
		StreamingCredentialsProvider: o.StreamingCredentialsProvider,
		DialTimeout:                  2 * timeout, ReadTimeout: timeout, WriteTimeout: timeout, ContextTimeoutEnabled: true,
		PoolSize: 1, DialerRetries: 1, MaxRetries: -1, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = client.Close() }()
	err = client.Process(ctx, n.probeCmd(ctx))
	heard = own.Load() != nil && own.Load().heard.Load() > 0
	switch {
	case isTimeout(err):
		return heard, fmt.Errorf("no reply to a new connection in time: %w", err)
	case isBroken(err) && n.isAtLimit(ctx):
		return heard, errConnectionLimit
	}
	return heard, err
}

// isAtLimit reports whether the server refuses a connection because it has too many. The server
// sends that at once; a client that writes first may get a reset instead.
func (n *Node) isAtLimit(ctx context.Context) bool {
	o := n.server.Options()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(n.replyIn()))
	said := make([]byte, len(connectionLimit))
	_, _ = io.ReadFull(conn, said)
	return bytes.Equal(said, connectionLimit)
}

// TryWrite runs the probe's script on a master. If the key belongs to another master of a Cluster,
// it returns nil.
func (c *Client) TryWrite(ctx context.Context, master *redis.Client) error {
	err := master.Process(ctx, onceCmd{redis.NewCmd(ctx, "eval", probeText, 1, c.config.ProbeKey)})
	if c.nodes.cluster != nil && (redisfault.Says(err, "MOVED") || redisfault.Says(err, "ASK")) {
		return nil
	}
	return err
}

// probeCmd returns the command that probes the node.
func (n *Node) probeCmd(ctx context.Context) *redis.Cmd {
	return redis.NewCmd(ctx, "eval", probeText, 1, n.probed)
}

// warm opens connections in the background, for later calls: the handshake with a distant server
// may take longer than any caller waits. It also completes connections that the client has dialed
// for canceled callers.
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
