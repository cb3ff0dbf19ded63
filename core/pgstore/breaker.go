package pgstore

import (
	"context"
	"errors"
	"net"
	"strconv"
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

// probe asks the server by a connection of its own, since those of the pool may all be in use.
func (s *Store) probe() error {
	settings := s.pool.Config().ConnConfig
	ctx, cancel := context.WithTimeout(s.life, time.Duration(2+otherHosts(settings))*s.config.timeout)
	defer cancel()
	conn, err := s.connect(ctx, settings)
	if err != nil {
		return explain(err, false)
	}
	defer func() { _ = conn.Close(ctx) }()
	if err := s.checkServer(ctx, conn); err != nil {
		return explain(err, false)
	}
	if _, err = conn.Exec(ctx, s.sql(probeText)); err == nil { // the row may be that of another probe
		_, err = conn.Exec(ctx, s.sql(confirmSQL))
	}
	return s.verdict(true, time.Time{}, err)
}

// isDecisive reports whether a single such failure proves that the server cannot work: nothing
// listens there, or it says so itself. A timeout may have many reasons.
func isDecisive(failure error) bool {
	switch store.CauseOf(failure) {
	case store.ConnectionRefused, store.UnknownHost:
		return true
	}
	return isMisconfigured(failure) || isCode(failure, "57P03") // it starts, or shuts down
}

// verdict returns what the result of a call means that was sent then: nil if the server works,
// breaker.ErrNoEvidence if it may work, or the failure.
//
// A timeout counts only if no other call got a reply meanwhile: a server that replies to others is
// busy, not down. Neither counts a statement that the server has canceled since it took too long, as
// one does that waits for a row; nor a connection that somebody has ended: the next one will tell.
func (s *Store) verdict(writes bool, sent time.Time, err error) error {
	if err == nil {
		return s.works(writes)
	}
	var answer *pgconn.PgError
	switch {
	case isReadOnly(err):
		return explain(err, false)
	case errors.As(err, &answer) && !endsStatement(answer):
		if endedByAdministrator(err) {
			return breaker.ErrNoEvidence
		}
		return explain(err, false)
	case answer != nil:
		works := s.works(writes)
		if isCode(err, "57014", "55P03") {
			return breaker.ErrNoEvidence
		}
		return works
	case s.life.Err() != nil, errors.Is(err, breaker.ErrNoEvidence), errors.Is(err, store.ErrUnavailable): // the store's own refusal
		return breaker.ErrNoEvidence
	case errors.Is(err, context.Canceled): // the caller has left
		return breaker.ErrNoEvidence
	case isTimeout(err) && !sent.IsZero() && s.heard.Load() > int64(sent.Add(s.config.timeout/10).Sub(s.made)):
		return breaker.ErrNoEvidence
	}
	return explain(err, false)
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

// noConnection reports that a call got no connection: its caller has left, all were in use, or none
// could be made.
func (s *Store) noConnection(waiting context.Context, admitted breaker.Call, err error) {
	if waiting.Err() != nil || s.life.Err() != nil {
		admitted.End(breaker.ErrNoEvidence)
		s.breaker.Doubt(time.Now())
	} else if endedByAdministrator(err) {
		admitted.End(breaker.ErrNoEvidence)
	} else {
		admitted.End(explain(err, false))
	}
}

// endedByAdministrator reports whether the server has ended the connection, but not all of them:
// for the next one it may work.
func endedByAdministrator(err error) bool { return isCode(err, "57P01", "57P02", "57P05") }
