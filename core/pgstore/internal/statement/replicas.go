package statement

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// A server with synchronous replicas (synchronous_standby_names) commits on its own disk first, and
// then waits for a replica. A cancel request ends that wait: the transaction is committed, others
// see it, and a failover may lose it. pgx sends one with each connection that it closes because a
// context has ended. The server does not notice that a connection was closed while it waits. So:
//   - No request cancels a statement that commits: see Committing and cancelsNothing.
//   - A result that is read, and not written, counts when a commit behind it is on the replicas: see
//     confirm_1 in schema/records.sql. What ends a wait all the same is the administrator, a server that
//     stops, and the application's own commits.

const confirmSQL = `SELECT lk.confirm_1()`

// Confirm returns nil when everything that was committed before is on the replicas for which the
// server waits.
func (db *Client) Confirm(ctx context.Context, op Operation) error {
	_, err := Run(ctx, db, Call{Operation: op, Urgency: batch.Finishing, Writes: true}, Execute(db.Text(confirmSQL)))
	return err
}

// Committing returns the context of statements that commit, without the caller's end. If they have
// no reply after so long, late is called, and the context ends when that proves that their
// connection is dead, or the store is closed. The caller calls end when they have ended.
func (db *Client) Committing(ctx context.Context, most time.Duration, late func()) (running context.Context, end func()) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	timer := time.AfterFunc(most, func() {
		if running.Err() != nil {
			return
		}
		late()
		if !db.Start(func() { db.endIfDead(running, cancel) }) {
			cancel()
		}
	})
	return running, func() { timer.Stop(); cancel() }
}

// endIfDead ends a context when a later commit has been confirmed: a statement that waits for a
// replica would have a reply then.
func (db *Client) endIfDead(running context.Context, cancel context.CancelFunc) {
	defer cancel()
	for running.Err() == nil && db.Probe() != nil && backoff.Sleep(db.life, db.config.Timeout) {
	}
}

// dials are those of one connection of the pool.
type dials struct{ connected, ended atomic.Bool }

var errCancelsNothing = errors.New("pgstore: statements are not canceled")

// cancelsNothing makes the settings of a connection refuse to dial once it is connected, as pgx
// does to send a cancel request, when it ends the connection.
func cancelsNothing(_ context.Context, c *pgx.ConnConfig) error {
	dial, d := c.DialFunc, new(dials)
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if d.connected.Load() {
			d.ended.Store(true)
			return nil, errCancelsNothing
		}
		conn, err := dial(ctx, network, address)
		if s, ok := conn.(*socket); ok {
			s.dials = d
		}
		return conn, err
	}
	return nil
}

// connected is called when a connection of the pool is.
func connected(c *pgconn.PgConn) {
	conn := c.Conn()
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	if s, ok := conn.(*socket); ok && s.dials != nil {
		s.dials.connected.Store(true)
	}
}
