package pgstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// fault is what happens to the next request of a connection.
type fault int

const (
	none        fault = iota
	lostRequest       // the server sees a broken connection instead
	lostReply         // the client sees one
	lateRequest       // the client sees one, and the server the request, but later
)

var errCut = errors.New("the connection is cut")

// faulty makes connections that break.
type faulty struct {
	mu   sync.Mutex
	next fault
	late func() // sends a late request
}

func (f *faulty) set(next fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.next = next
}

func (f *faulty) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	return &faultyConn{Conn: conn, of: f}, err
}

type faultyConn struct {
	net.Conn
	of     *faulty
	mu     sync.Mutex
	broken bool // reads fail, when the server has replied
	kept   bool // Close leaves the connection open
}

func (c *faultyConn) Write(b []byte) (int, error) {
	c.of.mu.Lock()
	next := c.of.next
	c.of.next = none
	c.of.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept {
		return 0, errCut
	}
	switch next {
	case lostRequest:
		_ = c.Conn.Close()
		return 0, errCut
	case lateRequest:
		c.kept = true
		_ = c.SetReadDeadline(time.Now()) // ends a read
		request := append([]byte{}, b...)
		c.of.late = func() {
			_ = c.SetDeadline(time.Now().Add(patience)) // should the server want more
			if _, err := c.Conn.Write(request); err != nil {
				panic(err)
			}
			_, _ = c.Conn.Read(make([]byte, 1<<16)) // the server has dealt with it
			_ = c.Conn.Close()
		}
		return 0, errCut
	case lostReply:
		c.broken = true
	}
	return c.Conn.Write(b)
}

func (c *faultyConn) Read(b []byte) (int, error) {
	if c.isKept() { // the reply is for late
		return 0, errCut
	}
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept {
		return 0, errCut
	}
	if c.broken && err == nil {
		_ = c.Conn.Close()
		return 0, errCut
	}
	return n, err
}

func (c *faultyConn) isKept() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}

func (c *faultyConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept {
		return nil
	}
	return c.Conn.Close()
}

// forgets has more time pass than records of abandoned attempts are kept for. Another attempt may
// run in that time, which has no effect.
func (s *shop) forgets(op guard.Operation, others bool) {
	s.t.Helper()
	pass := func() {
		s.exec("UPDATE lk.operations SET changed = changed - 3600000000, expires = 1, slice = 1, lease_ends = 0 " +
			"WHERE withdrawn IS NOT NULL")
	}
	pass()
	if others {
		if err := s.begin(op).Abandon(s.t.Context()); err != nil {
			s.t.Error(err)
		}
		pass()
	}
	s.store.sweepOnce(s.t.Context())
}

// TestDoCommitLost has the connection break at the commit.
func TestDoCommitLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault     fault
		committed bool
		others    bool // other attempts run before the commit arrives
	}{
		"the request": {fault: lostRequest}, "the reply": {fault: lostReply, committed: true},
		"for a while": {fault: lateRequest}, "for a while, with others": {fault: lateRequest, others: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			var f faulty
			settings, err := pgxpool.ParseConfig(s.pool.Config().ConnString())
			if err != nil {
				t.Fatal(err)
			}
			settings.ConnConfig.DialFunc = f.dial
			pool, err := pgxpool.NewWithConfig(t.Context(), settings)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			op := orderOp("k")
			place := func(id string, then fault) (string, bool, error) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				return Do(ctx, s.guard, op, pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
					_, err := tx.Exec(ctx, insertOrder, id, op.Key)
					f.set(then)
					if then == lateRequest {
						time.AfterFunc(time.Second, cancel) // it would wait for longer
					}
					return id, err
				})
			}
			warm := orderOp("warm") // it prepares the statements
			if _, _, err := Do(t.Context(), s.guard, warm, pool, func(context.Context, pgx.Tx) (int, error) { return 1, nil }); err != nil {
				t.Fatal(err)
			}
			id, replayed, err := place("a", c.fault)
			if c.committed {
				if id != "a" || replayed || err != nil {
					t.Fatalf("%q, %v, %v", id, replayed, err)
				}
				s.wantOrders(op.Key, "a")
			} else {
				if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) != (f.late != nil) {
					t.Errorf("got %v, want that nothing was changed unless the transaction is open", err)
				}
				if f.late != nil {
					s.forgets(op, c.others)
					f.late()
				}
				s.wantOrders(op.Key)
			}
			id, replayed, err = place("b", none)
			if want := map[bool]string{true: "a", false: "b"}[c.committed]; id != want || replayed != c.committed || err != nil {
				t.Errorf("again: %q, %v, %v", id, replayed, err)
			}
			if got := s.orders(op.Key); len(got) != 1 {
				t.Errorf("orders: %q", got)
			}
			if err := s.guard.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}
