package pgstore

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

// What the results of calls mean for the breaker.

// probeText locks a row and commits, as a write does, and leaves no dead row behind. A server that
// replies to a ping may be a replica, or be read-only. It waits for nobody.
const probeText = "SELECT 1 FROM lk.schema_version FOR UPDATE SKIP LOCKED"

func (s *Store) newBreaker(server *pgx.ConnConfig) *breaker.Breaker {
	return breaker.New(breaker.Config{
		Server: "postgresql", Address: addressOf(server), Logger: s.config.logger,
		Probe: s.probe, IsDecisive: isDecisive,
		Explain: func(failure error) error {
			s.logFault(s.life, failure)
			return failure
		},
		Life: s.life, Start: s.start,
	})
}

func addressOf(server *pgx.ConnConfig) string {
	return net.JoinHostPort(server.Host, strconv.Itoa(int(server.Port)))
}

// probe asks the server by a connection of its own: the pool's may all be in use, or lead to a
// server that has moved. If the server works, it ends the pool's silent connections together.
func (s *Store) probe() error {
	settings := s.pool.Config().ConnConfig
	ctx, cancel := context.WithTimeout(s.life, time.Duration(2+otherHosts(settings))*s.config.timeout)
	defer cancel()
	conn, err := s.connect(ctx, settings)
	if isCode(err, tooManyConnections) { // then those that it has must do
		return s.probeIdle(ctx, err)
	}
	if err != nil {
		return s.explain(err, false)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := s.prepareConnection(ctx, conn); err != nil {
		return s.explain(err, false)
	}
	err = s.probeOn(ctx, conn)
	if err == nil {
		s.endSilent(ctx)
	}
	return err
}

// probeOn probes the server by a connection.
func (s *Store) probeOn(ctx context.Context, conn *pgx.Conn) error {
	_, err := conn.Exec(ctx, s.sql(probeText))
	if err == nil { // the row may be that of another probe
		_, err = conn.Exec(ctx, s.sql(confirmSQL))
	}
	return s.verdict(true, time.Time{}, err)
}

// probeIdle probes the server by idle connections, since it has refused a new one. If all are in
// use, there is no evidence.
func (s *Store) probeIdle(ctx context.Context, refusal error) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	result := s.explain(refusal, false)
	if s.pool.Stat().AcquiredConns() > 0 {
		result = breaker.ErrNoEvidence
	}
	for _, conn := range s.pool.AcquireAllIdle(ctx) {
		if breaker.IsFailure(result) || errors.Is(result, breaker.ErrNoEvidence) {
			result = s.probeOn(ctx, conn.Conn())
		}
		conn.Release()
	}
	return result
}

// endSilent ends the idle connections that do not reply, now that a new one has.
func (s *Store) endSilent(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.config.timeout/4)
	defer cancel()
	var all sync.WaitGroup
	for _, conn := range s.pool.AcquireAllIdle(ctx) {
		all.Go(func() {
			_ = conn.Conn().Ping(ctx) // one that does not reply is closed
			conn.Release()
		})
	}
	all.Wait()
}

// isDecisive reports whether a failure is what a new connection says.
func isDecisive(failure error) bool {
	switch store.CauseOf(failure) {
	case store.ConnectionRefused, store.UnknownHost:
		return true
	}
	return false
}

// verdict returns what the result of a call means that was sent then: nil if the server works,
// breaker.ErrNoEvidence if it may work, or the failure.
//
// A timeout counts only if no other call got a reply meanwhile: a server that replies to others is
// busy, not down. Neither counts a bound that the call has reached at the server; nor a connection
// that the administrator has ended: the next connection is the evidence.
func (s *Store) verdict(writes bool, sent time.Time, err error) error {
	if err == nil {
		if writes && !s.written.Load() {
			s.written.Store(true)
		}
		return s.works(writes)
	}
	var reply *pgconn.PgError
	switch {
	case isReadOnly(err):
		return s.explain(err, false)
	case errors.As(err, &reply):
		return s.meaning(writes, reply, err)
	case s.life.Err() != nil, errors.Is(err, breaker.ErrNoEvidence), errors.Is(err, store.ErrUnavailable): // the store's own refusal
		return breaker.ErrNoEvidence
	case errors.Is(err, context.Canceled): // the caller has left
		return breaker.ErrNoEvidence
	case isTimeout(err) && !sent.IsZero() && s.repliedSince(sent):
		return breaker.ErrNoEvidence
	}
	return s.explain(err, false)
}

// meaning is the verdict on a call that the server has replied to with an error.
func (s *Store) meaning(writes bool, reply *pgconn.PgError, err error) error {
	means := meaningOf(reply).means
	works := breaker.ErrNoEvidence
	if endsStatement(reply) && means != outage {
		works = s.works(writes)
	}
	switch {
	case means == disconnected, means == overloaded:
		return breaker.ErrNoEvidence
	case means == outage, !endsStatement(reply):
		return s.explain(err, false)
	}
	return works
}

// works is the verdict on a call that the server has replied to. One that only serves reads is down
// for writes.
func (s *Store) works(writes bool) error {
	if !writes {
		return breaker.ErrNoEvidence
	}
	s.heard.Store(int64(time.Since(s.made)))
	return nil
}

// repliedSince reports whether the server has replied to a call that writes some time after then:
// earlier replies may still have been on their way.
func (s *Store) repliedSince(then time.Time) bool {
	return s.heard.Load() > int64(then.Add(s.config.timeout/10).Sub(s.made))
}

// doubt requests a probe, unless the server has replied to a call since this one began.
func (s *Store) doubt(began time.Time) {
	if !s.repliedSince(began) {
		s.breaker.Doubt(began)
	}
}

// noConnection reports that a call that began then got no connection: its caller has left, all were
// in use, or none could be made.
func (s *Store) noConnection(waiting context.Context, admitted breaker.Call, began time.Time, err error) {
	switch {
	case waiting.Err() != nil || s.life.Err() != nil:
		s.doubt(began)
	case !endedByAdministrator(err):
		admitted.End(s.explain(err, false))
	}
}

// endedByAdministrator reports whether the server has ended the connection, but not all of them:
// for the next one it may work.
func endedByAdministrator(err error) bool {
	var reply *pgconn.PgError
	return errors.As(err, &reply) && meaningOf(reply).means == disconnected
}
