// Package delays compares delayed tasks with asynq on Redis and with river on PostgreSQL, and with
// the fewest steps that they can take.
package delays

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

// Sections are the measurements of delayed tasks.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "delay",
		Title: "Delayed tasks",
		About: "How many tasks a second are put, taken and done; how late they begin; what a step costs with a million tasks waiting; what " +
			"an idle process sends. asynq and river find tasks that are due by polling, every 5 s by default.",
		Full:    330 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

const options = "Lockkeeper: the defaults of delay.New, redisstore.New and pgstore.New (8 connections, and one to listen), but for " +
	"timeouts of 5 s, so that a busy machine does not end a measurement. asynq: Concurrency of 10, as in its README. river: 100 " +
	"workers, as in its README, and a pool of 16 connections; where its rate is measured, 2,000 workers, FetchCooldown of 2 ms and " +
	"FetchPollInterval of 20 ms, as its own benchmark has them. All other settings are defaults; PostgreSQL makes no checkpoint " +
	"meanwhile. A task has a key and a payload of 20 bytes."

func run(ctx context.Context, b *bench.B) error {
	y, err := start(ctx, b)
	if err != nil {
		return err
	}
	defer y.pool.Close()
	for _, part := range []func(context.Context, *bench.B) error{y.rates, y.lateness, y.idle, y.waiting} {
		if err := part(ctx, b); err != nil {
			return err
		}
	}
	b.Note(options)
	return nil
}

// yard has the servers of all measurements.
type yard struct {
	redis    *redisserver.Server
	postgres *pgserver.Server
	pool     *pgxpool.Pool // for the tables
}

func start(ctx context.Context, b *bench.B) (*yard, error) {
	y := new(yard)
	var err error
	if y.redis, err = b.Redis(ctx); err != nil {
		return nil, err
	}
	// After a checkpoint the first change of a page is written as a whole, and a large table has many.
	if y.postgres, err = b.Postgres(ctx, "max_wal_size=8GB", "checkpoint_timeout=30min"); err != nil {
		return nil, err
	}
	if y.pool, err = connect(ctx, y.postgres.DSN()); err != nil {
		return nil, err
	}
	if err = y.tables(ctx); err != nil {
		y.pool.Close()
		return nil, err
	}
	return y, nil
}

// tables makes those of all contenders.
func (y *yard) tables(ctx context.Context) error {
	if err := pgstore.Migrate(ctx, y.pool); err != nil {
		return err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(y.pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return err
	}
	_, err = y.pool.Exec(ctx, plainTable)
	return err
}

// addr is the address of the server of a contender.
func (y *yard) addr(c contender) string {
	if c.postgres {
		return y.postgres.DSN()
	}
	return y.redis.Addr()
}

// connections is the number of those of a pool.
const connections = 16

func connect(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	settings, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	settings.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, settings)
}

// quiet is the log of all contenders: failures end a measurement.
var quiet = slog.New(slog.DiscardHandler)

func millis(ns float64) float64 { return ns / float64(time.Millisecond) }

func micros(ns float64) float64 { return ns / float64(time.Microsecond) }

// worst returns the largest of several values; NaN if one is.
func worst(values ...float64) float64 {
	most := math.Inf(-1)
	for _, v := range values {
		most = math.Max(most, v)
	}
	return most
}
