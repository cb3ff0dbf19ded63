package statement

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Call is a call of the server.
type Call struct {
	Operation Operation
	Urgency   batch.Urgency
	Writes    bool   // after an error it is unknown whether it was carried out, except if that is certain
	Once      bool   // it must not be carried out twice, such as a charge
	Brief     bool   // it waits for no other transaction
	Flow      string // calls about records take turns by it: the scope; empty for other calls
}

// Operation is the purpose of a call.
type Operation struct {
	Name  string // in telemetry
	Share Share
}

// Run runs f with a connection. It waits for the client's timeout at most for a connection, and for
// as long again for the reply, and returns earlier if ctx ends. The error is one of package store,
// and matches the context's as well if that has ended. f is repeated:
//   - if the server has rolled it back for the sake of another transaction;
//   - if its connection broke, and the call is not one for once.
//
// f may still run after its caller has left, so it must not change the caller's data. Its context does
// not end with the caller's: pgx closes a connection whose context ends during a query.
func Run[T any](
	ctx context.Context, db *Client, call Call, f func(ctx context.Context, c *pgx.Conn) (T, error),
) (T, error) {
	timing := db.telemetry.Begin(ctx, call.Operation.Name)
	value, err := attempt(ctx, db, call, f)
	timing.End(ctx, err)
	db.logFault(ctx, err)
	return value, err
}

// reply is the result of a statement.
type reply[T any] struct {
	value T
	err   error
}

func attempt[T any](
	ctx context.Context, db *Client, call Call, f func(ctx context.Context, c *pgx.Conn) (T, error),
) (none T, err error) {
	if db.life.Err() != nil {
		return none, store.ErrClosed
	}
	if ctx.Err() != nil {
		return none, fmt.Errorf("%w: %w", store.ErrUnavailable, context.Cause(ctx))
	}
	var admitted breaker.Call
	if call.Urgency != batch.Finishing {
		if admitted, err = db.breaker.Allow(call.Urgency == batch.Reading); err != nil {
			return none, err
		}
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, db.config.Timeout)
	defer cancel()
	conn, place, err := db.connection(waiting, call, admitted, began)
	if err != nil {
		return none, err
	}
	if time.Since(began) > db.config.Timeout/100 { // the reply has a timeout of its own
		began = time.Now()
		var over context.CancelFunc
		waiting, over = context.WithTimeout(ctx, db.config.Timeout)
		defer over()
	}
	sent := time.Now()
	var once sync.Once
	// tell reports the first result to the breaker. A statement without a reply in time has a second
	// one.
	tell := func(result error) {
		verdict := db.verdict(call.Writes, sent, result)
		once.Do(func() { admitted.End(verdict) })
	}
	// The verdict of a probe comes before the call's own end.
	defer time.AfterFunc(db.config.Timeout/2, func() { db.doubt(began) }).Stop()
	answer := func(running context.Context) reply[T] {
		r, result := patiently(running, db, call, conn, f)
		place.give()
		tell(result)
		return r
	}
	var r reply[T]
	if ctx.Done() == nil && !call.Writes || call.Brief && !db.recentlySlow() {
		r = answerHere(ctx, db, answer)
	} else {
		r = answerApart(ctx, waiting, db, call, tell, answer)
	}
	if errors.Is(r.err, errLate) {
		r.err = db.explainLate(r.err, began, call.Writes)
	}
	return r.value, r.err
}

// errLate is the error of a call whose context or time ended before the reply.
var errLate = errors.New("no reply in time")

func late(why error) error { return fmt.Errorf("%w: %w", errLate, why) }

// answerApart makes a call in a goroutine of its own. Its caller leaves the goroutine behind when
// its context ends.
func answerApart[T any](
	ctx, waiting context.Context, db *Client, call Call, tell func(result error),
	answer func(running context.Context) reply[T],
) reply[T] {
	done := make(chan reply[T], 1)
	db.workers.run(func() {
		// The server ends the statement first, which does not cost the connection.
		most := 3 * db.config.Timeout / 2
		if call.Writes {
			running, end := db.Committing(ctx, most, func() { tell(context.DeadlineExceeded) })
			defer end()
			done <- answer(running)
			return
		}
		running, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
		defer cancel()
		done <- answer(running)
	})
	select {
	case r := <-done:
		return r
	case <-waiting.Done():
	}
	select { // the reply may be there as well
	case r := <-done:
		return r
	default:
		return reply[T]{err: late(context.Cause(waiting))}
	}
}

const (
	// callerGrace is the time for a reply, after the end of the caller's context, to a call in the
	// caller's goroutine. To end the call earlier would cost the connection.
	callerGrace = 10 * time.Millisecond
	// slowFor is how long lookups run in goroutines of their own after one of them has cost a
	// connection.
	slowFor = 10 * time.Second
)

// answerHere makes a call in its caller's goroutine: to wake another thread takes as long as a
// lookup.
func answerHere[T any](ctx context.Context, db *Client, answer func(running context.Context) reply[T]) reply[T] {
	running, cancel := context.WithTimeout(context.WithoutCancel(ctx), db.config.Timeout+callerGrace)
	defer cancel()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() { time.AfterFunc(callerGrace, cancel) })()
	}
	r := answer(running)
	if r.err != nil && running.Err() != nil {
		db.slowUntil.Store(int64(time.Since(db.made) + slowFor))
		why := context.Cause(ctx)
		if why == nil {
			why = running.Err()
		}
		r.err = late(why)
	}
	return r
}

// recentlySlow reports whether a call in its caller's goroutine lately got no reply in time.
func (db *Client) recentlySlow() bool { return int64(time.Since(db.made)) < db.slowUntil.Load() }

// connection returns a connection for a call that began then, and the call's share of the pool. If
// there is no connection in time, it ends the call.
func (db *Client) connection(
	waiting context.Context, call Call, admitted breaker.Call, began time.Time,
) (conn *pgxpool.Conn, place admission, err error) {
	if place, err = db.shares.take(waiting, call); err == nil {
		conn, err = db.acquire(waiting)
		for endedByAdministrator(err) && waiting.Err() == nil { // while it was made
			conn, err = db.acquire(waiting)
		}
		if err == nil {
			return conn, place, nil
		}
		place.give()
	}
	db.noConnection(waiting, admitted, began, err)
	switch {
	case db.life.Err() != nil:
		return nil, place, store.ErrClosed
	case waiting.Err() != nil && !isMisconfigured(err):
		return nil, place, db.explainLate(fmt.Errorf("no connection in time: %w", context.Cause(waiting)), began, false)
	}
	return nil, place, db.Explain(err, false)
}

const (
	// Rollbacks is the number of times that a statement is sent if the server rolls it back each time.
	Rollbacks = 10
	// mostBroken is the number of connections that a statement may break, or find broken.
	mostBroken = 3
)

// patiently runs f until there is a result that a repetition would not change, and releases the
// connection. The reply's error is one of package store. result is the last error as it came.
func patiently[T any](
	ctx context.Context, db *Client, call Call, conn *pgxpool.Conn, f func(ctx context.Context, c *pgx.Conn) (T, error),
) (r reply[T], result error) {
	maybe := false // an earlier run, whose connection broke, may have been carried out
	for rolledBack, broken := 1, 0; ; {
		r.value, r.err = f(ctx, conn.Conn())
		result = r.err
		if result == nil && maybe && call.Writes { // the effects of the earlier run may be on no replica yet
			_, r.err = conn.Exec(ctx, db.Text(confirmSQL))
			result = r.err
		}
		if result == nil || ctx.Err() != nil {
			break
		}
		if WasRolledBack(result) && rolledBack < Rollbacks {
			rolledBack++
			continue
		}
		unsent := pgconn.SafeToRetry(result)
		moved := IsReadOnly(result) && db.hasMoved(ctx)
		if broken++; !moved && (!conn.Conn().IsClosed() || call.Once && !unsent) || broken >= mostBroken {
			break
		}
		db.release(conn)
		if !moved { // else the server has refused the statement, which has not run
			maybe = maybe || !unsent
			ctx = context.WithValue(ctx, repeat{}, repeat{})
		}
		if conn, result = db.acquire(ctx); result != nil {
			if ctx.Err() != nil { // all may be in use
				result = breaker.ErrNoEvidence
			}
			break
		}
	}
	if conn != nil {
		db.release(conn)
	}
	if r.err != nil && maybe && call.Writes {
		r.err = unconfirmed(r.err)
	} else {
		r.err = db.Explain(r.err, call.Writes)
	}
	return r, result
}

// hasMoved reports whether a new connection takes the writes that one of the pool has refused. All
// connections of the pool may be to the earlier server, or have the earlier setting, so they end.
func (db *Client) hasMoved(ctx context.Context) bool {
	db.pool.Reset()
	return db.breaker.Ask(ctx, time.Now()) == nil
}

// repeat is the context key of a function that Run calls again after its connection broke.
type repeat struct{}

// IsRepeat reports whether an earlier call of the function may have been carried out.
func IsRepeat(ctx context.Context) bool { return ctx.Value(repeat{}) != nil }

// Ping is a call that checks that the server replies.
func Ping(ctx context.Context, c *pgx.Conn) (struct{}, error) { return struct{}{}, c.Ping(ctx) }

// Execute is a call without a result.
func Execute(sql string, args ...any) func(ctx context.Context, c *pgx.Conn) (pgconn.CommandTag, error) {
	return func(ctx context.Context, c *pgx.Conn) (pgconn.CommandTag, error) { return c.Exec(ctx, sql, args...) }
}
