package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

// The rows of locks.
const (
	ours     = "Lockkeeper"
	pooled   = "Lockkeeper, 64 connections"
	pglock   = "pglock's statements"
	advisory = "session advisory lock"
	commits  = "an upsert, an update (the floor)"
	ceiling  = "sync.Mutex (the ceiling)"
)

// many is the number of goroutines of a crowd, and of connections of peers.
const many = 64

// lease is the lease of locks.
const lease = 30 * time.Second

// tables are those of the peers.
const tables = `
CREATE SEQUENCE pglock_versions;
CREATE TABLE pglock (name text PRIMARY KEY, version bigint, owner text NOT NULL);
CREATE TABLE floor (name text PRIMARY KEY, holder text, fence bigint NOT NULL) WITH (fillfactor = 60);
CREATE UNLOGGED TABLE buckets (id uuid PRIMARY KEY, empties bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE records (id uuid PRIMARY KEY, owner text NOT NULL, state "char" NOT NULL, ends bigint NOT NULL, data bytea) WITH (fillfactor = 80);
CREATE TABLE orders (id bigint PRIMARY KEY, total bigint NOT NULL) WITH (fillfactor = 60);
INSERT INTO orders SELECT n, 0 FROM generate_series(1, 1000) n;
`

// uncontended are the contenders for locks without contention.
func uncontended() []contest.Contender {
	return []contest.Contender{
		{Row: ours, Open: lockkeeper()},
		{Row: pooled, Tuned: true, Open: lockkeeper(pgstore.WithConnections(many))},
		{Row: pglock, Open: byStatements(lockPglock, unlockPglock)},
		{Row: advisory, Open: openAdvisory(many)},
		{Row: commits, Open: byStatements(lockFloor, unlockFloor)},
	}
}

// contenders are those that can wait for a lock. A waiter of pglock sleeps for a lease of 20 s: it
// has no rate to compare.
func contenders() []contest.Contender {
	return []contest.Contender{
		{Row: ours, Open: lockkeeper()},
		{Row: advisory, Open: openAdvisory(many / processes)},
	}
}

type client struct {
	store  *pgstore.Store
	locker *lock.Locker
}

func lockkeeper(options ...pgstore.Option) func(dsn string) (contest.Client, error) {
	return func(dsn string) (contest.Client, error) {
		store, err := open(dsn, options...)
		if err != nil {
			return nil, err
		}
		locker, err := lock.New(store, "bench", lock.WithTTL(lease), lock.WithLogger(quiet))
		if err != nil {
			return nil, err
		}
		return &client{store, locker}, nil
	}
}

func (c *client) Lock(ctx context.Context, key string) (contest.Held, error) {
	held, err := c.locker.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return held, nil
}

// Waiting returns how many wait for a key.
func (c *client) Waiting(ctx context.Context, key string) (int, error) {
	state, err := c.locker.Inspect(ctx, key)
	return state.Waiting, err
}

func (c *client) Close() {
	_ = c.locker.Close()
	_ = c.store.Close()
}

// statements locks and unlocks with statements of a pool, each of them a transaction of its own.
type statements struct {
	pool   *pgxpool.Pool
	lock   func(ctx context.Context, pool *pgxpool.Pool, key string) (version int64, err error)
	unlock func(ctx context.Context, pool *pgxpool.Pool, key string, version int64) error
}

type statementsHeld struct {
	*statements
	key     string
	version int64
}

func byStatements(
	lock func(context.Context, *pgxpool.Pool, string) (int64, error), unlock func(context.Context, *pgxpool.Pool, string, int64) error,
) func(dsn string) (contest.Client, error) {
	return func(dsn string) (contest.Client, error) {
		p, err := pool(context.Background(), dsn, many)
		if err != nil {
			return nil, err
		}
		return &statements{p, lock, unlock}, nil
	}
}

func (s *statements) Lock(ctx context.Context, key string) (contest.Held, error) {
	version, err := s.lock(ctx, s.pool, key)
	if err != nil {
		return nil, err
	}
	return &statementsHeld{s, key, version}, nil
}

func (s *statements) Close() { s.pool.Close() }

func (h *statementsHeld) Unlock(ctx context.Context) error {
	return h.unlock(ctx, h.pool, h.key, h.version)
}

// lockPglock takes a number from a sequence, and writes it into the lock's row if that has none. No
// row comes back if another one has it.
func lockPglock(ctx context.Context, pool *pgxpool.Pool, key string) (version int64, err error) {
	if err = pool.QueryRow(ctx, "SELECT nextval('pglock_versions')").Scan(&version); err != nil {
		return 0, err
	}
	return version, pool.QueryRow(ctx, "INSERT INTO pglock AS l (name, version, owner) VALUES ($1, $2, 'owner') "+
		"ON CONFLICT (name) DO UPDATE SET version = excluded.version, owner = excluded.owner WHERE l.version IS NULL RETURNING version",
		key, version).Scan(&version)
}

func unlockPglock(ctx context.Context, pool *pgxpool.Pool, key string, version int64) error {
	_, err := pool.Exec(ctx, "UPDATE pglock SET version = NULL WHERE name = $1 AND version = $2", key, version)
	return err
}

// lockFloor and unlockFloor are a lock with a fence, and with nothing else.
func lockFloor(ctx context.Context, pool *pgxpool.Pool, key string) (fence int64, err error) {
	return fence, pool.QueryRow(ctx, "INSERT INTO floor AS f (name, holder, fence) VALUES ($1, 'holder', 1) "+
		"ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, fence = f.fence + 1 WHERE f.holder IS NULL RETURNING fence", key).Scan(&fence)
}

func unlockFloor(ctx context.Context, pool *pgxpool.Pool, key string, fence int64) error {
	_, err := pool.Exec(ctx, "UPDATE floor SET holder = NULL WHERE name = $1 AND fence = $2", key, fence)
	return err
}

// advisoryClient locks on connections of a pool, each as long as its lock is held or waited for.
type advisoryClient struct{ pool *pgxpool.Pool }

type advisoryHeld struct {
	conn *pgxpool.Conn
	key  string
}

func openAdvisory(connections int32) func(dsn string) (contest.Client, error) {
	return func(dsn string) (contest.Client, error) {
		p, err := pool(context.Background(), dsn, connections)
		if err != nil {
			return nil, err
		}
		return advisoryClient{p}, nil
	}
}

func (a advisoryClient) Lock(ctx context.Context, key string) (contest.Held, error) {
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock(hashtextextended($1, 0))", key); err != nil {
		conn.Release() // its context has ended, and so has the connection
		return nil, err
	}
	return &advisoryHeld{conn, key}, nil
}

func (a advisoryClient) Close() { a.pool.Close() }

func (h *advisoryHeld) Unlock(ctx context.Context) error {
	defer h.conn.Release()
	_, err := h.conn.Exec(ctx, "SELECT pg_advisory_unlock(hashtextextended($1, 0))", h.key)
	return err
}
