package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

// size is that of a result.
const size = 256

// guards measures operations of one goroutine, and of many.
func guards(ctx context.Context, b *bench.B, y *yard) error {
	const (
		title  = "PostgreSQL: a guard"
		two    = "two commits: an INSERT and an UPDATE of 256 B (the floor)"
		one    = "a SELECT of 256 B by key (the floor)"
		effect = "the effect alone: BEGIN, UPDATE, COMMIT"
		fresh  = "Lockkeeper, fresh: Begin and Complete"
		replay = "Lockkeeper, replay: Begin"
		apart  = "Lockkeeper: Begin, the effect, Complete"
		whole  = "Lockkeeper: pgstore.Do with the effect"
	)
	t := b.Table("postgres-guards", title, "The result has 256 bytes. The effect is an UPDATE of one of 1,000 rows in a transaction. Round trips are "+
		"messages to the server, with those of the effect.",
		bench.Column{Name: "p50", Unit: "µs, 1 goroutine"},
		bench.Column{Name: "p99", Unit: "µs, 1 goroutine"},
		bench.Column{Name: "round trips", Unit: "per operation"},
		bench.Column{Name: "allocations", Unit: "per operation"},
		bench.Column{Name: "rate of 64", Unit: "per s, 64 goroutines"},
	)
	t.Reference(two, one, effect)
	st, sent, err := openCounted(ctx, y.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	application, applied, err := countedPool(ctx, y.dsn, many)
	if err != nil {
		return err
	}
	defer application.Close()
	g, err := guard.New(st, "bench", guard.WithMaxPerScope(1<<20), guard.WithMaxScopeBytes(1<<30))
	if err != nil {
		return err
	}
	text := strings.Repeat("x", size)
	var unused atomic.Int64
	next := func() string { return "fresh-" + strconv.FormatInt(unused.Add(1), 10) }
	// Subjects have operations of their own: each scope has a limit.
	operation := func(worker int, key string) guard.Operation {
		return guard.Operation{Scope: "subject-" + strconv.Itoa(worker), Key: key, Fingerprint: []byte("POST /orders")}
	}
	change := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "UPDATE orders SET total = total + 1 WHERE id = $1", 1+unused.Add(1)%1000)
		return err
	}
	begun := func(ctx context.Context, worker int, key string, do func(context.Context) error) error {
		attempt, _, err := g.Begin(ctx, operation(worker, key))
		if err != nil {
			return err
		}
		if attempt == nil {
			return errors.New("a fresh operation was replayed")
		}
		if err := do(ctx); err != nil {
			return err
		}
		return attempt.Complete(ctx, guard.Result{Status: http.StatusOK, Data: []byte(text)})
	}
	nothing := func(context.Context) error { return nil }
	committed := func(ctx context.Context) error {
		return pgx.BeginFunc(ctx, application, func(tx pgx.Tx) error { return change(ctx, tx) })
	}
	record := func(ctx context.Context, key string) error {
		sum := sha256.Sum256([]byte(key))
		id := [16]byte(sum[:16])
		if _, err := application.Exec(ctx, `INSERT INTO records (id, owner, state, ends) VALUES ($1, 'owner', 'F', 0) ON CONFLICT DO NOTHING`, id); err != nil {
			return err
		}
		_, err := application.Exec(ctx, `UPDATE records SET state = 'C', data = $2 WHERE id = $1 AND owner = 'owner'`, id, []byte(text))
		return err
	}
	if err := record(ctx, "finished"); err != nil {
		return err
	}
	for worker := range many {
		if err := begun(ctx, worker, "finished", nothing); err != nil {
			return err
		}
	}
	do := map[string]func(ctx context.Context, worker int) error{
		two: func(ctx context.Context, _ int) error { return record(ctx, next()) },
		one: func(ctx context.Context, _ int) error {
			sum := sha256.Sum256([]byte("finished"))
			var data []byte
			return application.QueryRow(ctx, "SELECT data FROM records WHERE id = $1", [16]byte(sum[:16])).Scan(&data)
		},
		effect: func(ctx context.Context, _ int) error { return committed(ctx) },
		fresh:  func(ctx context.Context, worker int) error { return begun(ctx, worker, next(), nothing) },
		replay: func(ctx context.Context, worker int) error {
			_, kept, err := g.Begin(ctx, operation(worker, "finished"))
			if err == nil && kept == nil {
				err = errors.New("a finished operation was not replayed")
			}
			return err
		},
		apart: func(ctx context.Context, worker int) error { return begun(ctx, worker, next(), committed) },
		whole: func(ctx context.Context, worker int) error {
			_, replayed, err := pgstore.Do(ctx, g, operation(worker, next()), application, func(ctx context.Context, tx pgx.Tx) (string, error) {
				return text, change(ctx, tx)
			})
			if err == nil && replayed {
				err = errors.New("a fresh operation was replayed")
			}
			return err
		},
	}
	var alone, crowded []bench.Contender
	for _, row := range []string{two, one, effect, fresh, replay, apart, whole} {
		call := func(ctx context.Context, worker, _ int) error { return do[row](ctx, worker) }
		alone = append(alone, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			for range 3 { // connects, and prepares statements
				if err := do[row](ctx, 0); err != nil {
					return err
				}
			}
			before := sent.Load() + applied.Load()
			r := bench.Load(ctx, 1, b.Time(time.Second), call)
			t.Add(row, "p50", micros(r.P50))
			t.Add(row, "p99", micros(r.P99))
			t.Add(row, "round trips", float64(sent.Load()+applied.Load()-before)/float64(max(r.Ops, 1)))
			t.Add(row, "allocations", r.AllocsPerOp)
			return r.Err
		}})
		crowded = append(crowded, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			bench.Load(ctx, many, b.Time(250*time.Millisecond), call) // connects
			r := bench.Load(ctx, many, b.Time(time.Second), call)
			t.Add(row, "rate of 64", r.PerSecond)
			if r.Errors > 0 {
				b.Note(fmt.Sprintf("%s: %d of %d calls of 64 goroutines failed: %v", row, r.Errors, r.Ops+r.Errors, r.Err))
			}
			return ctx.Err()
		}})
	}
	if err := b.InterleaveFinely(ctx, "postgres, guard", bench.PartsOfCalls, alone); err != nil {
		return err
	}
	if err := b.Interleave(ctx, "postgres, guard of 64", crowded); err != nil {
		return err
	}
	t.Chart(title, "p50", "p99")
	b.Measured(guardFresh, t.Ratio("p50", fresh, two))
	b.Measured(guardReplay, t.Ratio("p50", replay, one))
	b.Measured(guardDo, t.Ratio("p50", whole, apart))
	b.Measured(guardTrips, t.Value(whole, "round trips"))
	return nil
}
