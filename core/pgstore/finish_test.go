package pgstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func newDelays(t *testing.T, st store.Delays, opts ...delay.Option) *delay.Queue {
	t.Helper()
	q, err := delay.New(st, "unpaid", append([]delay.Option{delay.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	must(t, err)
	return q
}

// An effect and the end of its task are committed together, also if the commit's reply is lost, the
// worker fails after it, or its lease ends in between: each effect happens once.
func TestFinish(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, err := s.pool.Exec(t.Context(), "CREATE TABLE public.effects (task text, at timestamptz DEFAULT now())")
	must(t, err)
	const tasks = 300
	q := newDelays(t, s.store, delay.WithBackoff(func(int) time.Duration { return 0 }), delay.WithAttempts(100))
	must(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		for n := range tasks {
			if _, err := PutTask(t.Context(), tx, q, fmt.Sprint(n), nil, 0); err != nil {
				return err
			}
		}
		_, err := PutTask(t.Context(), tx, q, "cancelled", nil, 0)
		return err
	}))
	must(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		outcome, err := CancelTask(t.Context(), tx, q, "cancelled")
		if outcome != delay.Prevented {
			t.Errorf("cancelled: %s, %v", outcome, err)
		}
		return err
	}))
	errAfter, errBefore := errors.New("after the commit"), errors.New("before the commit")
	ctx, end := context.WithCancel(t.Context())
	ran := make(chan error, 1)
	var runs atomic.Int64
	go func() {
		ran <- q.Run(ctx, 8, func(ctx context.Context, task *delay.Task) error {
			n := runs.Add(1)
			tx, err := s.pool.Begin(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
			if _, err := tx.Exec(ctx, "INSERT INTO public.effects (task) VALUES ($1)", task.ID()); err != nil {
				return err
			}
			if err := Finish(ctx, tx, task); err != nil {
				return err
			}
			if n%5 == 0 {
				return errBefore
			}
			if err := tx.Commit(ctx); err != nil {
				return err
			}
			if n%5 == 1 {
				return errAfter
			}
			return nil
		})
	}()
	eventually(t, "all tasks are done", func() bool {
		counts, err := q.Count(t.Context())
		return err == nil && counts == delay.Counts{}
	})
	end()
	if err := <-ran; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := query[int](t, s.store, "SELECT count(*) FROM public.effects"); n != tasks {
		t.Errorf("%d effects of %d tasks", n, tasks)
	}
	if n := query[int](t, s.store, "SELECT count(DISTINCT task) FROM public.effects"); n != tasks {
		t.Errorf("effects of %d tasks, want %d", n, tasks)
	}
}

func TestFinishOfALostTask(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	q := newDelays(t, s.store)
	_, err := q.Put(t.Context(), "k", nil, 0)
	must(t, err)
	task, err := q.Take(t.Context())
	must(t, err)
	_, err = s.pool.Exec(t.Context(), "UPDATE lk.tasks SET due = lk.now_us() - 1") // its lease has ended
	must(t, err)
	tx, err := s.pool.Begin(t.Context())
	must(t, err)
	if err := Finish(t.Context(), tx, task); !errors.Is(err, delay.ErrLost) {
		t.Errorf("Finish: %v", err)
	}
	if err := Finish(t.Context(), tx, task); !errors.Is(err, delay.ErrSettled) {
		t.Errorf("Finish again: %v", err)
	}
	must(t, tx.Rollback(t.Context()))
	next, err := q.Take(t.Context())
	must(t, err)
	tx, err = s.pool.Begin(t.Context())
	must(t, err)
	must(t, Finish(t.Context(), tx, next))
	must(t, tx.Commit(t.Context()))
	must(t, next.Done(t.Context())) // as Run does
}
