package pgstore

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

// step is a call of the server.
type step struct {
	operation operation
	urgency   urgency
	writes    bool   // an error leaves unknown whether it was carried out, unless that is certain
	once      bool   // it must not be carried out twice, such as a charge
	brief     bool   // it waits for no other transaction
	flow      string // calls about records take turns by it: the scope; empty for other calls
}

// urgency is whether a call is made even if the breaker is open.
type urgency = batch.Urgency

const (
	// ordinary calls fail at once while the breaker is open.
	ordinary = batch.Ordinary
	// reading calls change nothing: they are also made while it is open because the server takes no
	// writes.
	reading = batch.Reading
	// finishing calls end something that was begun: they are always tried.
	finishing = batch.Finishing
)

// run runs f with a connection. Its caller gets an error of package store, or one that is its
// context's as well, when its context ends, or after the store's timeout for a connection and once
// more for the reply. f is repeated when the server has rolled it back for the sake of another
// transaction, and, unless the step is for once, when its connection broke.
//
// f may go on after its caller has left, so it has a context that the caller's does not end, since
// pgx closes a connection whose context ends during a query, and must not change what the caller
// has.
func run[T any](ctx context.Context, s *Store, st step, f func(ctx context.Context, c *pgx.Conn) (T, error)) (T, error) {
	timing := s.telemetry.Begin(ctx, string(st.operation))
	value, err := attempt(ctx, s, st, f)
	timing.End(ctx, err)
	s.logFault(ctx, err)
	return value, err
}

// logFault logs errors that do not end by themselves.
func (s *Store) logFault(ctx context.Context, err error) {
	if isMisconfigured(err) {
		s.misconfigured.Found(ctx, "cause", string(store.CauseOf(err)), "error", err)
	}
}

// reply is what a statement has come to.
type reply[T any] struct {
	value T
	err   error
}

func attempt[T any](ctx context.Context, s *Store, st step, f func(ctx context.Context, c *pgx.Conn) (T, error)) (none T, err error) {
	if s.life.Err() != nil {
		return none, store.ErrClosed
	}
	if ctx.Err() != nil {
		return none, fmt.Errorf("%w: %w", store.ErrUnavailable, context.Cause(ctx))
	}
	var admitted breaker.Call
	if st.urgency != finishing {
		if admitted, err = s.breaker.Allow(st.urgency == reading); err != nil {
			return none, err
		}
	}
	began := time.Now()
	waiting, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	conn, place, err := s.connection(waiting, st, admitted, began)
	if err != nil {
		return none, err
	}
	if time.Since(began) > s.config.timeout/100 { // the reply has a timeout of its own
		began = time.Now()
		var over context.CancelFunc
		waiting, over = context.WithTimeout(ctx, s.config.timeout)
		defer over()
	}
	sent := time.Now()
	var once sync.Once
	tell := func(result error) { // the breaker, of the first result: a statement may go on that has no reply in time
		verdict := s.verdict(st.writes, sent, result)
		once.Do(func() { admitted.End(verdict) })
	}
	// The verdict of a probe comes before the call's own end.
	defer time.AfterFunc(s.config.timeout/2, func() { s.doubt(began) }).Stop()
	answer := func(running context.Context) reply[T] {
		r, result := patiently(running, s, st, conn, f)
		place.give()
		tell(result)
		return r
	}
	var r reply[T]
	if ctx.Done() == nil && !st.writes || st.brief && !s.recentlySlow() {
		r = answerHere(ctx, s, answer)
	} else {
		r = answerApart(ctx, waiting, s, st, tell, answer)
	}
	if errors.Is(r.err, errLate) {
		r.err = s.explainLate(r.err, began, st.writes)
	}
	return r.value, r.err
}

// errLate is the error of a call whose context or time ended before the reply.
var errLate = errors.New("no reply in time")

func late(why error) error { return fmt.Errorf("%w: %w", errLate, why) }

// answerApart makes a call in a goroutine of its own, which its caller leaves behind when its
// context ends.
func answerApart[T any](
	ctx, waiting context.Context, s *Store, st step, tell func(result error), answer func(running context.Context) reply[T],
) reply[T] {
	done := make(chan reply[T], 1)
	s.workers.run(func() {
		// The server ends the statement first, which does not cost the connection.
		most := 3 * s.config.timeout / 2
		if st.writes {
			running, end := s.committing(ctx, most, func() { tell(context.DeadlineExceeded) })
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
	// callerGrace is how long a call goes on in its caller's goroutine after the caller's context
	// has ended. To end it costs the connection.
	callerGrace = 10 * time.Millisecond
	// slowFor is how long lookups run in goroutines of their own after one has cost a connection.
	slowFor = 10 * time.Second
)

// answerHere makes a call in its caller's goroutine, since to wake another thread takes as long as
// a lookup.
func answerHere[T any](ctx context.Context, s *Store, answer func(running context.Context) reply[T]) reply[T] {
	running, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.config.timeout+callerGrace)
	defer cancel()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, func() { time.AfterFunc(callerGrace, cancel) })()
	}
	r := answer(running)
	if r.err != nil && running.Err() != nil {
		s.slowUntil.Store(int64(time.Since(s.made) + slowFor))
		why := context.Cause(ctx)
		if why == nil {
			why = running.Err()
		}
		r.err = late(why)
	}
	return r
}

// recentlySlow reports whether a call in its caller's goroutine has lately had no reply in time.
func (s *Store) recentlySlow() bool { return int64(time.Since(s.made)) < s.slowUntil.Load() }

// connection returns a connection for a call that began then, and the call's share of the pool. It
// ends the call if there is none in time.
func (s *Store) connection(
	waiting context.Context, st step, admitted breaker.Call, began time.Time,
) (conn *pgxpool.Conn, place admission, err error) {
	if place, err = s.shares.take(waiting, st); err == nil {
		conn, err = s.acquire(waiting)
		for endedByAdministrator(err) && waiting.Err() == nil { // while it was made
			conn, err = s.acquire(waiting)
		}
		if err == nil {
			return conn, place, nil
		}
		place.give()
	}
	s.noConnection(waiting, admitted, began, err)
	switch {
	case s.life.Err() != nil:
		return nil, place, store.ErrClosed
	case waiting.Err() != nil && !isMisconfigured(err):
		return nil, place, s.explainLate(fmt.Errorf("no connection in time: %w", context.Cause(waiting)), began, false)
	}
	return nil, place, s.explain(err, false)
}

const (
	// rollbacks is how often a statement is sent that the server rolls back.
	rollbacks = 10
	// mostBroken is how many connections a statement may break, or find broken.
	mostBroken = 3
)

// patiently runs f until there is a result that a repetition would not change, and releases the
// connection. The error of the reply is one of package store; result is the last one as it came.
func patiently[T any](
	ctx context.Context, s *Store, st step, conn *pgxpool.Conn, f func(ctx context.Context, c *pgx.Conn) (T, error),
) (r reply[T], result error) {
	maybe := false // an earlier one, whose connection broke, may have been carried out
	for rolledBack, broken := 1, 0; ; {
		r.value, r.err = f(ctx, conn.Conn())
		result = r.err
		if result == nil && maybe && st.writes { // it may have found what is on no replica yet
			_, r.err = conn.Exec(ctx, s.sql(confirmSQL))
			result = r.err
		}
		if result == nil || ctx.Err() != nil {
			break
		}
		if wasRolledBack(result) && rolledBack < rollbacks {
			rolledBack++
			continue
		}
		unsent := pgconn.SafeToRetry(result)
		moved := isReadOnly(result) && s.hasMoved(ctx)
		if broken++; !moved && (!conn.Conn().IsClosed() || st.once && !unsent) || broken >= mostBroken {
			break
		}
		s.release(conn)
		if !moved { // what a server that takes no writes has refused has not run
			maybe = maybe || !unsent
			ctx = context.WithValue(ctx, repeat{}, repeat{})
		}
		if conn, result = s.acquire(ctx); result != nil {
			if ctx.Err() != nil { // all may be in use
				result = breaker.ErrNoEvidence
			}
			break
		}
	}
	if conn != nil {
		s.release(conn)
	}
	if r.err != nil && maybe && st.writes {
		r.err = unconfirmed(r.err)
	} else {
		r.err = s.explain(r.err, st.writes)
	}
	return r, result
}

// hasMoved reports whether a new connection takes the writes that one of the pool has refused: all
// of the pool may be of the server, or have the setting, of before, and end.
func (s *Store) hasMoved(ctx context.Context) bool {
	s.pool.Reset()
	return s.breaker.Ask(ctx, time.Now()) == nil
}

// repeat is in the context of a function that run calls again after its connection broke.
type repeat struct{}

// isRepeat reports whether an earlier call of the function may have been carried out.
func isRepeat(ctx context.Context) bool { return ctx.Value(repeat{}) != nil }

func ping(ctx context.Context, c *pgx.Conn) (struct{}, error) { return struct{}{}, c.Ping(ctx) }

// execute is a step without a result.
func execute(sql string, args ...any) func(ctx context.Context, c *pgx.Conn) (pgconn.CommandTag, error) {
	return func(ctx context.Context, c *pgx.Conn) (pgconn.CommandTag, error) { return c.Exec(ctx, sql, args...) }
}

// unhurried is the timeout of background work, which no caller waits for.
func (s *Store) unhurried() time.Duration { return max(5*time.Second, 4*s.config.timeout) }
