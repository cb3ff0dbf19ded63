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
// see it, and a failover may lose it. pgx sends a cancel request with each connection that it
// closes because a context has ended. While it waits, the server does not notice that a connection
// was closed. So:
//   - No request cancels a statement that commits: see Committing and cancelsNothing.
//   - A result that is read, and not written, counts when a later commit is on the replicas: see
//     confirm_1 in schema/records.sql. Waits are still ended by the administrator, by a server that
//     stops, and for the application's own commits.

const confirmSQL = `SELECT lk.confirm_1()`

// Confirm returns nil when all earlier commits are on the replicas for which the server waits.
func (db *Client) Confirm(ctx context.Context, op Operation) error {
	_, err := Run(ctx, db, Call{Operation: op, Urgency: batch.Finishing, Writes: true}, Execute(db.Text(confirmSQL)))
	return err
}

// Committing returns a context for statements that commit. It does not end with the caller's. If
// they have no reply after most, late is called. The context then ends when it is proven that their
// connection is dead, or when the client is closed. The caller calls end when they have ended.
func (db *Client) Committing(
	ctx context.Context, most time.Duration, late func(),
) (running context.Context, end func()) {
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
// replica would have a reply by then.
func (db *Client) endIfDead(running context.Context, cancel context.CancelFunc) {
	defer cancel()
	for running.Err() == nil && db.Probe() != nil && backoff.Sleep(db.life, db.config.Timeout) {
	}
}

// dials is the state of the dials of one connection of the pool.
type dials struct{ connected, ended atomic.Bool }

var errCancelsNothing = errors.New("pgstore: statements are not canceled")

// cancelsNothing makes the settings of a connection refuse to dial once it is connected. pgx dials
// again to send a cancel request, when it ends the connection.
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

// connected is called when a connection of the pool is connected.
func connected(c *pgconn.PgConn) {
	conn := c.Conn()
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	if s, ok := conn.(*socket); ok && s.dials != nil {
		s.dials.connected.Store(true)
	}
}
