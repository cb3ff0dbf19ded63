package script

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// The client dials in the background, five times with pauses. A call gets the error of a refused
// connection only after all of them, unless its own deadline is earlier. So the store watches the
// client's dials, and ends the calls that wait for a connection as soon as the server's address is
// unreachable.

// redials is how often a refused connection is retried at once. Behind a load balancer with failed
// parts, the next try may reach another one.
const redials = 2

// dialWatch is a redis.Hook on the client of a node. A hook cannot be removed; once stopped it does
// nothing.
type dialWatch struct {
	node atomic.Pointer[Node]
	made time.Time
	held sync.RWMutex // while it is locked, no dial begins

	mu    sync.Mutex
	conns map[*watchedConn]struct{} // open ones
}

func (n *Node) watchDials() {
	n.dials = &dialWatch{made: time.Now(), conns: make(map[*watchedConn]struct{})}
	n.dials.node.Store(n)
	n.server.AddHook(n.dials)
}

func (w *dialWatch) stop() {
	if w != nil {
		w.node.Store(nil)
	}
}

// DialHook implements redis.Hook.
func (w *dialWatch) DialHook(dial redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		n := w.node.Load()
		if n == nil {
			return dial(ctx, network, address)
		}
		w.held.RLock()
		w.held.RUnlock() //nolint:staticcheck // it only waits
		conn, err := n.dial(func() (net.Conn, error) { return dial(ctx, network, address) })
		if err != nil {
			return nil, err
		}
		conn, _ = w.watch(conn)
		return conn, nil
	}
}

// dial dials, again if the server is unreachable, and then ends the calls that wait for a
// connection.
func (n *Node) dial(dial func() (net.Conn, error)) (net.Conn, error) {
	conn, err := dial()
	if !redisfault.IsUnreachable(err) {
		return conn, err
	}
	n.answered.Store(false)
	for range redials {
		if conn, err = dial(); !redisfault.IsUnreachable(err) {
			return conn, err
		}
	}
	if !n.answered.Load() { // on another connection
		n.owner.deadlines.refuse(n, err)
	}
	return nil, err
}

// ProcessHook implements redis.Hook.
func (w *dialWatch) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

// ProcessPipelineHook implements redis.Hook.
func (w *dialWatch) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// addressOf returns the address of a client's server, for logs.
func addressOf(client redis.UniversalClient) string {
	switch client := client.(type) {
	case *redis.Client:
		return client.Options().Addr
	case *redis.ClusterClient:
		return strings.Join(client.Options().Addrs, ",")
	}
	return fmt.Sprintf("%T", client)
}
