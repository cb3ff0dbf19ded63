package pgstore

import (
	"context"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// BenchmarkOperations measures operations one after the other, on a server that syncs its log: those
// of one round are interleaved, and the medians are reported.
func BenchmarkOperations(b *testing.B) {
	ctx := context.Background()
	server := postgrestest.StartOnDisk(b, "fsync=on")
	migrateIn(b, server.DSN())
	administer(b, server.DSN(), "CREATE TABLE rows (id int PRIMARY KEY, n int NOT NULL) WITH (fillfactor = 50); INSERT INTO rows SELECT i, 0 FROM generate_series(0, 9999) i")
	s := openTestStore(b, server.DSN(), WithTimeout(time.Second))
	g, err := guard.New(s, "orders")
	if err != nil {
		b.Fatal(err)
	}
	pool, err := pgxpool.New(ctx, server.DSN())
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	key := 0
	op := func(n int) guard.Operation {
		return guard.Operation{Key: strconv.Itoa(n), Scope: strconv.Itoa(n % 1000)}
	}
	fresh := func() guard.Operation { key++; return op(key) }
	result := guard.Result{Data: make([]byte, 512)}
	const update = "UPDATE rows SET n = n + 1 WHERE id = $1"
	steps := []struct {
		name string
		do   func(i int)
	}{
		{"commit", func(i int) { _, err := pool.Exec(ctx, update, i%10000); check(err) }},
		{"effect", func(i int) {
			check(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, update, i%10000); return err }))
		}},
		{"begin+settle", func(int) {
			a, _, err := g.Begin(ctx, fresh())
			check(err)
			check(a.Complete(ctx, result))
		}},
		{"apart", func(i int) {
			_, _, err := guard.Do(ctx, g, fresh(), func(ctx context.Context) ([]byte, error) {
				return result.Data, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, update, i%10000); return err })
			})
			check(err)
		}},
		{"Do", func(i int) {
			_, _, err := Do(ctx, g, fresh(), pool, func(ctx context.Context, tx pgx.Tx) ([]byte, error) {
				_, err := tx.Exec(ctx, update, i%10000)
				return result.Data, err
			})
			check(err)
		}},
		{"Complete", func(i int) {
			a, _, err := g.Begin(ctx, fresh())
			check(err)
			check(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, update, i%10000); err != nil {
					return err
				}
				return Complete(ctx, tx, a, result)
			}))
			check(a.Complete(ctx, result))
		}},
		{"select", func(i int) { check(pool.QueryRow(ctx, "SELECT n FROM rows WHERE id = $1", i%10000).Scan(new(int))) }},
		{"replay", func(i int) {
			_, r, err := g.Begin(ctx, op(1+i%min(key, 100)))
			check(err)
			if r == nil {
				b.Fatal("no replay")
			}
		}},
	}
	times := make([][]time.Duration, len(steps))
	for i := 0; b.Loop(); i++ {
		for n, step := range steps {
			began := time.Now()
			step.do(i)
			if i > 20 {
				times[n] = append(times[n], time.Since(began))
			}
		}
	}
	for n, step := range steps {
		if len(times[n]) > 0 {
			slices.Sort(times[n])
			b.ReportMetric(float64(times[n][len(times[n])/2].Microseconds()), step.name+"-µs")
		}
	}
}
