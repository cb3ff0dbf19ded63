// Package postgres compares the PostgreSQL store with what others do there, and with the fewest
// statements that its promises can take.
package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

// Sections are the comparison of what is on PostgreSQL.
func Sections() []bench.Section {
	return []bench.Section{
		{
			Name:  section,
			Title: "PostgreSQL: locks",
			About: "A lock of one's own takes two commits at least, and its hand-over from one process to another two commits and a " +
				"notification. pglock's way is its three statements, sent by hand; a session advisory lock writes nothing, and keeps a " +
				"connection as long as it is held or waited for.",
			Full:    120 * time.Second,
			Run:     on(alone, contended, remote, dead),
			Targets: lockTargets(),
		},
		{
			Name:  section + "-tokens",
			Title: "PostgreSQL: token buckets",
			About: "Decisions of 256 goroutines about 10,000 keys. Lockkeeper sends those of many callers in one statement, over 8 " +
				"connections; the peer is a single statement for each, over 64, on an unlogged table as well.",
			Full:    45 * time.Second,
			Run:     on(allowed, denied),
			Targets: tokenTargets(),
		},
		{
			Name:  section + "-guards",
			Title: "PostgreSQL: idempotency",
			About: "A fresh operation takes two commits at least, before and after its effect, and a replay one read. pgstore.Do has the " +
				"operation, its effect and its result in one transaction.",
			Full:    45 * time.Second,
			Run:     on(guards),
			Targets: guardTargets(),
		},
		{
			Name:  section + "-old",
			Title: "PostgreSQL: beside an old transaction",
			About: "While a transaction has a snapshot, the server keeps every version of a row that has been written since, and each " +
				"statement walks through those of its row: what writes a row often becomes slow.",
			Full:    280 * time.Second,
			Run:     on(beside),
			Targets: besideTargets(),
		},
		{
			Name:    section + "-many",
			Title:   "PostgreSQL: many locks, many waiters",
			About:   "What one process sends while it holds many locks, and while many of its goroutines wait for one.",
			Full:    45 * time.Second,
			Run:     on(held, waiting),
			Targets: manyTargets(),
		},
	}
}

const section = "postgres"

// Jobs are those of the worker processes.
func Jobs() []worker.Job {
	return contest.Jobs(section, func() []contest.Contender { return append(contenders(), queued()) })
}

// yard is the server of a section.
type yard struct {
	dsn  string
	peer *pgxpool.Pool // for the tables of peers, and of the floor: 64 connections, as goroutines
}

// on returns a section's run, with a server of its own.
func on(parts ...func(ctx context.Context, b *bench.B, y *yard) error) func(ctx context.Context, b *bench.B) error {
	return func(ctx context.Context, b *bench.B) error {
		server, err := b.Postgres(ctx)
		if err != nil {
			return err
		}
		y := &yard{dsn: server.DSN()}
		if y.peer, err = pool(ctx, y.dsn, many); err != nil {
			return err
		}
		defer y.peer.Close()
		if err := pgstore.Migrate(ctx, y.peer); err != nil {
			return err
		}
		if _, err := y.peer.Exec(ctx, tables); err != nil {
			return err
		}
		for _, part := range parts {
			if err := part(ctx, b, y); err != nil {
				return err
			}
		}
		b.Note(options)
		return nil
	}
}

const options = "The server has its default settings but for shared_buffers of 256 MB, with fsync. Lockkeeper: pgstore.New with its " +
	"defaults, 8 connections and one to listen, unless the row has others; locks are leased for 30 s. Peers: a pgx pool of 64 " +
	"connections, and statements that it prepares."

// pool returns a pool of peers.
func pool(ctx context.Context, dsn string, connections int32) (*pgxpool.Pool, error) {
	settings, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	settings.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, settings)
}

// quiet is the store's log: failures are counted.
var quiet = slog.New(slog.DiscardHandler)

// open returns a store as a process has it.
func open(dsn string, options ...pgstore.Option) (*pgstore.Store, error) {
	return pgstore.New(dsn, append(options, pgstore.WithLogger(quiet))...)
}

// peerOf returns the error of a round, and notes instead that of a peer.
func peerOf(ctx context.Context, b *bench.B, row, title string, err error) error {
	if err == nil || ctx.Err() != nil || strings.HasPrefix(row, ours) {
		return err
	}
	b.Note(fmt.Sprintf("%s, %s: a round has failed: %v", row, title, err))
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
