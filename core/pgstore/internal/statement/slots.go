package statement

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// slots bounds the number of calls at a time, which it admits in their order. The slots of the
// client bound the calls that have a connection of the pool, or make one, at the number of the
// pool's connections. While the server takes no more connections, the pool has fewer. A call for
// which it would make another one then waits for one that works.
type slots chan struct{}

// tooManyConnections is the code of the error of a server that takes no more connections, or no
// more of this user.
const tooManyConnections = "53300"

// slotRest is how long a slot stays unused after the server has refused a connection.
const slotRest = time.Second

// take waits for a slot, and reports whether there was one before the context ended.
func (f slots) take(ctx context.Context) bool {
	select {
	case f <- struct{}{}:
		return true
	default:
	}
	select {
	case f <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f slots) give() { <-f }

// acquire returns a connection of the pool, which ends with release.
func (db *Client) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	for {
		if !db.slots.take(ctx) {
			return nil, ctx.Err()
		}
		conn, err := db.pool.Acquire(ctx)
		if err == nil {
			return conn, nil
		}
		if !IsCode(err, tooManyConnections) || !db.hasOthers() {
			db.slots.give()
			return nil, err
		}
		time.AfterFunc(slotRest, db.slots.give)
	}
}

// hasOthers reports whether the pool has connections.
func (db *Client) hasOthers() bool {
	pool := db.pool.Stat()
	return pool.AcquiredConns()+pool.IdleConns() > 0
}

func (db *Client) release(conn *pgxpool.Conn) {
	conn.Release()
	db.slots.give()
}
