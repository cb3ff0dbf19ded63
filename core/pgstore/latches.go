package pgstore

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// CountDownLatch implements store.Latches: one statement.
func (s *Store) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	if s.hooks.Begun() {
		return 0, store.ErrClosed
	}
	type counted struct {
		arrived int
		waiting []string
	}
	id, by := s.digest("latch", req.Name), s.digest("participant", req.Name, participant)
	call := statement.Call{Operation: opLatch, Writes: true}
	c, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (n counted, err error) {
		err = c.QueryRow(ctx, s.db.Text(`SELECT arrived, waiting FROM lk.count_down_latch_1($1, $2, $3, $4)`),
			id, by, req.TTL.Microseconds(), store.MaxParticipants).Scan(&n.arrived, &n.waiting)
		return n, err
	})
	if err != nil {
		return 0, err
	}
	if c.arrived < 0 {
		return 0, fmt.Errorf("%w: a latch has at most %d participants", store.ErrFull, store.MaxParticipants)
	}
	s.tell(c.waiting, openPush(id))
	return c.arrived, nil
}

// openPush is the push for a latch that has as many participants as a waiter waits for.
func openPush(id [16]byte) string { return "open " + hex.EncodeToString(id[:]) }

// InspectLatch implements store.Latches: one statement.
func (s *Store) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	id := s.digest("latch", req.Name)
	return s.arrived(ctx, opInspect,
		`SELECT coalesce(max(arrived), 0) FROM lk.latches WHERE id = $1 AND ends > lk.now_us()`, id)
}

// AwaitLatch implements store.Latches. It waits for a push, and checks every three seconds.
func (s *Store) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	id := s.digest("latch", req.Name)
	return s.waiting.AwaitPush(ctx, openPush(id), func(bool) (bool, time.Duration, error) {
		n, err := s.arrived(ctx, opLatch, `SELECT lk.await_latch_1($1, $2, $3, $4)`,
			id, req.Count, s.db.Inbox(), waiting.NoticeLife.Microseconds())
		return n >= req.Count, 0, err
	})
}

// arrived runs a statement that returns the number of participants of a latch.
func (s *Store) arrived(ctx context.Context, op statement.Operation, text string, args ...any) (int, error) {
	call := statement.Call{Operation: op, Urgency: batch.Reading}
	if op == opLatch {
		call.Urgency, call.Writes = batch.Ordinary, true
	}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		err = c.QueryRow(ctx, s.db.Text(text), args...).Scan(&n)
		return n, err
	})
}
