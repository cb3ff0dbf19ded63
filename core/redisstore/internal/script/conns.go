package script

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A pooled connection may lead to a server that its address no longer stands for, as after a
// failover, or nowhere, while a new one works. The pool would find that out one connection at a
// time. So the store watches the client's connections. If a new one shows that the older ones are
// stale, the store drops them together.

// watchedConn is a connection of the client.
type watchedConn struct {
	net.Conn
	of           *dialWatch
	dialed       int64 // see dialWatch.clock
	wrote, heard atomic.Int64
	reading      atomic.Bool
}

// watchedSyscallConn is a watchedConn that the pool can check before it uses it.
type watchedSyscallConn struct {
	*watchedConn
	syscall.Conn
}

// watch records conn in w until it is closed. It returns the connection to use, and its record.
func (w *dialWatch) watch(conn net.Conn) (net.Conn, *watchedConn) {
	c := &watchedConn{Conn: conn, of: w, dialed: w.clock()}
	w.mu.Lock()
	w.conns[c] = struct{}{}
	w.mu.Unlock()
	if s, ok := conn.(syscall.Conn); ok {
		return watchedSyscallConn{c, s}, c
	}
	return c, c
}

func (w *dialWatch) clock() int64 { return int64(time.Since(w.made)) }

// Read implements net.Conn.
func (c *watchedConn) Read(b []byte) (int, error) {
	c.reading.Store(true)
	n, err := c.Conn.Read(b)
	c.reading.Store(false)
	if n > 0 && c.heard.Swap(c.of.clock()) == 0 && bytes.HasPrefix(b[:n], connectionLimit) {
		return 0, errConnectionLimit
	}
	return n, err
}

// connectionLimit is the start of the error that a server sends before it closes a connection
// because it has too many. The client would take it for an old server's reply to its first command,
// and report the end of the connection instead.
var (
	connectionLimit    = []byte("-ERR max number of clients")
	errConnectionLimit = store.Outage(store.ConnectionLimit, errors.New("redis: ERR max number of clients reached"))
)

// Write implements net.Conn.
func (c *watchedConn) Write(b []byte) (int, error) {
	c.wrote.Store(c.of.clock())
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *watchedConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// NetConn returns the connection itself, as that of a tls.Conn does.
func (c *watchedConn) NetConn() net.Conn { return c.Conn }

// isIdle reports whether no call waits for a reply, or for a push, on the connection.
func (c *watchedConn) isIdle() bool { return !c.reading.Load() && c.wrote.Load() <= c.heard.Load() }

// worked reports whether a connection that is older than the first silence has received data since
// the last one began.
func (w *dialWatch) worked(first, last int64) bool {
	return len(w.find(func(c *watchedConn) bool { return c.dialed < first && c.heard.Load() > last })) > 0
}

// heardSince reports whether any connection has received data since then.
func (w *dialWatch) heardSince(then int64) bool {
	return len(w.find(func(c *watchedConn) bool { return c.heard.Load() > then })) > 0
}

// closeIdle closes idle connections that were dialed before then; the pool finds them closed.
func (w *dialWatch) closeIdle(then int64) {
	for _, c := range w.find(func(c *watchedConn) bool { return c.dialed < then && c.isIdle() }) {
		_ = c.Close()
	}
}

// closeSilent closes connections that
//   - are older than the first silence,
//   - have received nothing since the last one began,
//   - are being read, and
//   - were last written longer than now ago: a later request may still get its reply.
func (w *dialWatch) closeSilent(first, last int64, now time.Duration) {
	late := w.clock() - int64(now)
	for _, c := range w.find(func(c *watchedConn) bool {
		return c.dialed < first && c.heard.Load() <= last && c.wrote.Load() < late && c.reading.Load()
	}) {
		_ = c.Close()
	}
}

func (w *dialWatch) find(which func(*watchedConn) bool) (all []*watchedConn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		if which(c) {
			all = append(all, c)
		}
	}
	return all
}

// doubts records the reasons to probe a node and its pooled connections. Times are by
// dialWatch.clock.
type doubts struct {
	refused atomic.Bool // a connection led to a server that takes no writes
	// first and last are the times since which connections have been silent, the earliest and the
	// latest one: for so long that no reply is on its way.
	first, last atomic.Int64
}

// doubtSilence makes the breaker probe the node, since a call has no reply, or no connection.
func (n *Node) doubtSilence(c *callContext) {
	sent := c.sent.since()
	if n.server != nil && !sent.IsZero() && time.Since(sent) >= n.replyIn()/4 {
		since := int64(sent.Sub(n.dials.made))
		n.doubts.first.CompareAndSwap(0, since)
		n.doubts.last.Store(since)
	}
	n.breaker.Doubt(c.since())
}

// dropStale drops the pooled connections from before asked, when the probe dialed a new one, if one
// of these is true:
//   - a connection led to a server that takes no writes;
//   - a connection was silent, and none of the older ones has received data since;
//   - the breaker is open: after an outage any of them may be stale.
func (n *Node) dropStale(asked int64) {
	refused, first := n.doubts.refused.Swap(false), n.doubts.first.Swap(0)
	last := n.doubts.last.Load() + int64(n.replyIn()/10) // replies were still on their way, on other connections
	if !refused && !n.isDown() && (first == 0 || n.dials.worked(first, last)) {
		return
	}
	n.closeIdle()
	n.dials.closeIdle(asked)
	if first != 0 {
		n.dials.closeSilent(first, last, n.replyIn()/4)
	}
}

// closeIdle closes the idle connections of the pool, including those from before the store, which
// it does not watch. It sends nothing: each command fails at once, since its deadline has passed,
// and the client closes its connection.
//
// All are taken at once, since the client retries the handshake of a connection without one until
// ctx ends. No dials begin during that time, since the client would use a new connection first.
func (n *Node) closeIdle() {
	if n.server.Options().WriteTimeout < 0 { // no time is over
		return
	}
	ctx, cancel := context.WithCancel(n.owner.life)
	defer cancel()
	n.dials.held.Lock()
	defer n.dials.held.Unlock()
	all := make([]*redis.Conn, n.server.PoolStats().IdleConns)
	failed := make(chan struct{}, len(all))
	for i := range all { // together: the pool would return the same one again
		all[i] = n.server.Conn()
		go func() {
			_ = all[i].Process(tooLateContext{ctx}, onceCmd{redis.NewCmd(ctx, "ping")})
			failed <- struct{}{}
		}()
	}
	for range all {
		select {
		case <-failed:
		case <-time.After(20 * time.Millisecond): // the others had no handshake
			cancel()
			<-failed
		}
	}
	for _, conn := range all {
		_ = conn.Close()
	}
}

// tooLateContext is a context whose deadline has passed, although it has not ended.
type tooLateContext struct{ context.Context }

func (tooLateContext) Deadline() (time.Time, bool) { return time.Unix(1, 0), true }

// poolDials returns an error while the client does not dial, as for a second after some failures.
func (n *Node) poolDials() error {
	ctx, cancel := context.WithTimeout(n.owner.life, n.owner.config.Timeout)
	defer cancel()
	if err := n.server.Process(ctx, onceCmd{redis.NewCmd(ctx, "ping")}); redisfault.IsUnreachable(err) {
		return err
	}
	return nil
}
