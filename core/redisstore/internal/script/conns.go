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

// A pooled connection may lead to a server that its address no longer means, or nowhere, while a
// new one works. The pool would find that out one by one. So the store watches the client's
// connections, and drops those from before together when a new one has shown that they are stale.

// watchedConn is a connection of the client.
type watchedConn struct {
	net.Conn
	of           *dialWatch
	dialed       int64 // see dialWatch.clock
	wrote, heard atomic.Int64
	reading      atomic.Bool
}

// watchedSyscallConn is one that the pool can check before it is used.
type watchedSyscallConn struct {
	*watchedConn
	syscall.Conn
}

// watch returns a connection that w knows until it is closed, and what it knows.
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

// connectionLimit is what a server says that takes no more connections, before it closes one. The
// client would take it for an old server's reply to its first command, and report the end instead.
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

// isIdle reports whether nobody waits for a reply, or for a push.
func (c *watchedConn) isIdle() bool { return !c.reading.Load() && c.wrote.Load() <= c.heard.Load() }

// worked reports whether a connection that is older than the first silence has been heard since the
// last one began.
func (w *dialWatch) worked(first, last int64) bool {
	return len(w.find(func(c *watchedConn) bool { return c.dialed < first && c.heard.Load() > last })) > 0
}

// heardSince reports whether any connection has been heard since then.
func (w *dialWatch) heardSince(then int64) bool {
	return len(w.find(func(c *watchedConn) bool { return c.heard.Load() > then })) > 0
}

// closeIdle closes idle connections that are older than that; the pool finds them closed.
func (w *dialWatch) closeIdle(then int64) {
	for _, c := range w.find(func(c *watchedConn) bool { return c.dialed < then && c.isIdle() }) {
		_ = c.Close()
	}
}

// closeSilent closes connections that are older than the first silence, have not been heard since
// the last one began, and are being read. What was written just now may still be answered.
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

// doubts is why a node is probed, for the connections of its pool. Times are by dialWatch.clock.
type doubts struct {
	refused atomic.Bool // a connection led to a server that takes no writes
	// Since when connections have been silent, for too long for a reply on its way: the first one,
	// and the last one.
	first, last atomic.Int64
}

// doubtSilence has the node probed, since a call has no reply, or no connection.
func (n *Node) doubtSilence(c *callContext) {
	sent := c.sent.since()
	if n.server != nil && !sent.IsZero() && time.Since(sent) >= n.replyIn()/4 {
		since := int64(sent.Sub(n.dials.made))
		n.doubts.first.CompareAndSwap(0, since)
		n.doubts.last.Store(since)
	}
	n.breaker.Doubt(c.since())
}

// dropStale drops the connections of the pool that are older than a new one, which was asked then
// and has shown that they are stale: they led elsewhere, or none of them was heard while one was
// silent. After an outage nobody knows.
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

// closeIdle closes the idle connections of the pool, also those that are older than the store,
// which nobody watches. Nothing is sent: the time for it is over, and the client closes a
// connection whose command has failed. It takes them at once, since the client tries the handshake
// of one that had none until ctx ends; and meanwhile the client opens no others, which it would
// return first.
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
	for i := range all { // the same would be returned twice
		all[i] = n.server.Conn()
		go func() {
			_ = all[i].Process(tooLateContext{ctx}, onceCmd{redis.NewCmd(ctx, "ping")})
			failed <- struct{}{}
		}()
	}
	for range all {
		select {
		case <-failed:
		case <-time.After(20 * time.Millisecond): // those that are left had no handshake
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

// poolDials returns an error while the client dials no more, as for a second after some failures.
func (n *Node) poolDials() error {
	ctx, cancel := context.WithTimeout(n.owner.life, n.owner.config.Timeout)
	defer cancel()
	if err := n.server.Process(ctx, onceCmd{redis.NewCmd(ctx, "ping")}); redisfault.IsUnreachable(err) {
		return err
	}
	return nil
}
