package statement

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// probeText locks a row and commits, as a write does, and leaves no dead row behind. It waits for
// no other transaction. A ping would be no evidence: a replica, or a read-only server, replies to
// it as well.
const probeText = "SELECT 1 FROM lk.schema_version FOR UPDATE SKIP LOCKED"

func (db *Client) newBreaker(server *pgx.ConnConfig) *breaker.Breaker {
	return breaker.New(breaker.Config{
		Server: "postgresql", Address: AddressOf(server), Logger: db.config.Logger,
		Probe: db.Probe, IsDecisive: isDecisive,
		Explain: func(failure error) error {
			db.logFault(db.life, failure)
			return failure
		},
		Life: db.life, Start: db.Start,
	})
}

// AddressOf returns the address of a server, for logs.
func AddressOf(server *pgx.ConnConfig) string {
	return net.JoinHostPort(server.Host, strconv.Itoa(int(server.Port)))
}

// Probe asks the server by a connection of its own, since the pool's may all be in use, or lead to
// a server that has moved. The connection itself may have become silent, as all others then have, so
// after half a timeout another one is asked as well. If the server works, Probe ends the pool's silent
// connections together.
func (db *Client) Probe() error {
	settings := db.pool.Config().ConnConfig
	ctx, cancel := context.WithTimeout(db.life, time.Duration(2+otherHosts(settings))*db.config.Timeout)
	defer cancel()
	verdicts := make(chan error, 2)
	var asks sync.WaitGroup
	ask := func() { verdicts <- db.probeAnew(ctx, settings) }
	asks.Go(ask)
	asked, again := 1, time.NewTimer(db.config.Timeout/2)
	defer again.Stop()
	var err error
	for asked > 0 {
		select {
		case <-again.C:
			asked++
			asks.Go(ask)
			continue
		case err = <-verdicts:
			asked--
		}
		if !breaker.IsFailure(err) || store.CauseOf(err) != store.Timeout {
			break
		}
	}
	if err == nil {
		db.endSilent(ctx)
	}
	cancel()
	asks.Wait()
	return err
}

// probeAnew probes the server by a new connection.
func (db *Client) probeAnew(ctx context.Context, settings *pgx.ConnConfig) error {
	conn, err := db.connect(ctx, settings)
	if IsCode(err, tooManyConnections) {
		return db.probeIdle(ctx, err)
	}
	if err != nil {
		return db.Explain(err, false)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := db.prepareConnection(ctx, conn); err != nil {
		return db.Explain(err, false)
	}
	return db.probeOn(ctx, conn)
}

// probeOn probes the server by a connection.
func (db *Client) probeOn(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, db.Text(probeText))
	if err == nil { // the row may be that of another probe
		_, err = conn.Exec(ctx, db.Text(confirmSQL))
	}
	return db.verdict(true, time.Time{}, err)
}

// probeIdle probes the server by idle connections, since it has refused a new one. If all are in
// use, there is no evidence.
func (db *Client) probeIdle(ctx context.Context, refusal error) error {
	ctx, cancel := context.WithTimeout(ctx, db.config.Timeout)
	defer cancel()
	result := db.Explain(refusal, false)
	if db.pool.Stat().AcquiredConns() > 0 {
		result = breaker.ErrNoEvidence
	}
	for _, conn := range db.pool.AcquireAllIdle(ctx) {
		if breaker.IsFailure(result) || errors.Is(result, breaker.ErrNoEvidence) {
			result = db.probeOn(ctx, conn.Conn())
		}
		conn.Release()
	}
	return result
}

// endSilent ends the idle connections that do not reply, after a new one has replied.
func (db *Client) endSilent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, db.config.Timeout/4)
	defer cancel()
	var all sync.WaitGroup
	for _, conn := range db.pool.AcquireAllIdle(ctx) {
		all.Go(func() {
			_ = conn.Conn().Ping(ctx) // one that does not reply is closed
			conn.Release()
		})
	}
	all.Wait()
}

// isDecisive reports whether a failure alone is decisive: a new connection was refused, or its host
// is unknown.
func isDecisive(failure error) bool {
	switch store.CauseOf(failure) {
	case store.ConnectionRefused, store.UnknownHost:
		return true
	}
	return false
}

// verdict returns the verdict on the server by the result of a call that was sent then: nil if the
// server works, breaker.ErrNoEvidence if it may work, or the failure.
//
// No evidence are:
//   - a timeout, if another call got a reply since: a server that replies to others is busy, not
//     down;
//   - a bound that the call has reached at the server;
//   - a connection that the administrator has ended: the next connection is the evidence.
func (db *Client) verdict(writes bool, sent time.Time, err error) error {
	if err == nil {
		if writes && !db.written.Load() {
			db.written.Store(true)
		}
		return db.works(writes)
	}
	var reply *pgconn.PgError
	switch {
	case IsReadOnly(err):
		return db.Explain(err, false)
	case errors.As(err, &reply):
		return db.meaning(writes, reply, err)
	case db.life.Err() != nil, errors.Is(err, breaker.ErrNoEvidence),
		errors.Is(err, store.ErrUnavailable): // the client's own refusal
		return breaker.ErrNoEvidence
	case errors.Is(err, context.Canceled): // the caller has left
		return breaker.ErrNoEvidence
	case isTimeout(err) && !sent.IsZero() && db.repliedSince(sent):
		return breaker.ErrNoEvidence
	}
	return db.Explain(err, false)
}

// meaning is the verdict on a call that the server has replied to with an error.
func (db *Client) meaning(writes bool, reply *pgconn.PgError, err error) error {
	means := meaningOf(reply).means
	works := breaker.ErrNoEvidence
	if EndsStatement(reply) && means != outage {
		works = db.works(writes)
	}
	switch {
	case means == disconnected, means == overloaded:
		return breaker.ErrNoEvidence
	case means == outage, !EndsStatement(reply):
		return db.Explain(err, false)
	}
	return works
}

// works is the verdict on a call that the server has replied to. A server that only serves reads is
// down for writes.
func (db *Client) works(writes bool) error {
	if !writes {
		return breaker.ErrNoEvidence
	}
	db.heard.Store(int64(time.Since(db.made)))
	return nil
}

// repliedSince reports whether the server has replied to a call that writes some time after then.
// Earlier replies may have been on their way before then.
func (db *Client) repliedSince(then time.Time) bool {
	return db.heard.Load() > int64(then.Add(db.config.Timeout/10).Sub(db.made))
}

// doubt requests a probe, unless the server has replied to a call since this one began.
func (db *Client) doubt(began time.Time) {
	if !db.repliedSince(began) {
		db.breaker.Doubt(began)
	}
}

// noConnection reports that a call that began then got no connection: its caller has left, all
// connections were in use, or none could be made.
func (db *Client) noConnection(waiting context.Context, admitted breaker.Call, began time.Time, err error) {
	switch {
	case waiting.Err() != nil || db.life.Err() != nil:
		db.doubt(began)
	case !endedByAdministrator(err):
		admitted.End(db.Explain(err, false))
	}
}

// endedByAdministrator reports whether the server has ended the connection, but not all of them.
// The next connection may work.
func endedByAdministrator(err error) bool {
	var reply *pgconn.PgError
	return errors.As(err, &reply) && meaningOf(reply).means == disconnected
}
