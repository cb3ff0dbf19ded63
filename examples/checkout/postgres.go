package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

const (
	// postgresTimeout bounds a transaction of the shop. If its instance stops in the middle, the server
	// ends it after that time.
	postgresTimeout = 2 * time.Second
	// migrationTimeout is long enough for another instance to migrate first.
	migrationTimeout = 30 * time.Second
)

// postgresTables are the shop's own, and the provider's ledger. Instances that start at once make
// them one after the other.
const postgresTables = `
SELECT pg_advisory_xact_lock(hashtext('checkout'));
CREATE SCHEMA IF NOT EXISTS checkout;
CREATE TABLE IF NOT EXISTS checkout.charges (name text PRIMARY KEY, text text NOT NULL);
CREATE TABLE IF NOT EXISTS checkout.orders (name text PRIMARY KEY, text text NOT NULL);
CREATE TABLE IF NOT EXISTS checkout.stock (sku text PRIMARY KEY, quantity bigint NOT NULL, fence bigint NOT NULL);`

func openPostgres(ctx context.Context, dsn string, timeout time.Duration, stderr io.Writer) (_ state, err error) {
	settings, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return state{}, fmt.Errorf("-postgres: %w", err)
	}
	if params := settings.ConnConfig.RuntimeParams; params["idle_in_transaction_session_timeout"] == "" {
		params["idle_in_transaction_session_timeout"] = fmt.Sprint(postgresTimeout.Milliseconds())
	}
	pool, err := pgxpool.NewWithConfig(ctx, settings)
	if err != nil {
		return state{}, fmt.Errorf("-postgres: %w", err)
	}
	defer func() {
		if err != nil {
			pool.Close()
		}
	}()
	// Unlike with Redis, there is nothing to serve before the database has been reached once.
	migrating, cancel := context.WithTimeout(ctx, migrationTimeout)
	defer cancel()
	if err := pgstore.Migrate(migrating, pool); err != nil {
		return state{}, fmt.Errorf("-postgres: %w", err)
	}
	if _, err := pool.Exec(migrating, postgresTables); err != nil {
		return state{}, fmt.Errorf("-postgres: make the shop's tables: %w", err)
	}
	var opts []pgstore.Option
	if timeout != 0 {
		opts = append(opts, pgstore.WithTimeout(timeout))
	}
	st, err := pgstore.NewFromPool(pool, opts...)
	if err != nil {
		return state{}, fmt.Errorf("-postgres: %w", err)
	}
	findings, err := st.Check(ctx)
	if err != nil {
		return state{}, errors.Join(fmt.Errorf("-postgres: %w", err), st.Close())
	}
	for _, finding := range findings {
		_, _ = fmt.Fprintln(stderr, "checkout:", finding)
	}
	return state{"postgres", st, postgresNotebook{pool, "charges"}, postgresNotebook{pool, "orders"}, postgresShelf{pool}, func() error {
		err := st.Close()
		pool.Close()
		return err
	}}, nil
}

// postgresNotebook is a table that is shared by all instances.
type postgresNotebook struct {
	pool  *pgxpool.Pool
	table string
}

func (n postgresNotebook) write(ctx context.Context, name, text string) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	return n.insert(ctx, n.pool, name, text)
}

// complete is what only a database can do: the order and the record of its operation are committed
// together, or neither is, whenever the process is killed.
func (n postgresNotebook) complete(ctx context.Context, name, text string, attempt *guard.Attempt, answer guard.Result) error {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	return pgx.BeginFunc(ctx, n.pool, func(tx pgx.Tx) error {
		if _, _, err := n.insert(ctx, tx, name, text); err != nil {
			return err
		}
		return pgstore.Complete(ctx, tx, attempt, answer)
	})
}

func (n postgresNotebook) insert(ctx context.Context, db pgstore.Tx, name, text string) (noted string, first bool, err error) {
	err = db.QueryRow(ctx, `INSERT INTO checkout.`+n.table+` (name, text) VALUES ($1, $2)
		ON CONFLICT (name) DO UPDATE SET name = excluded.name RETURNING text`, name, text).Scan(&noted)
	return noted, noted == text, err // a text with an ID of its own is no other call's
}

func (n postgresNotebook) read(ctx context.Context, name string) (text string, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	err = n.pool.QueryRow(ctx, `SELECT text FROM checkout.`+n.table+` WHERE name = $1`, name).Scan(&text)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, nil
	}
	return text, err == nil, err
}

// postgresShelf is shared by all instances.
type postgresShelf struct{ pool *pgxpool.Pool }

func (s postgresShelf) count(ctx context.Context, sku string) (left int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	err = s.pool.QueryRow(ctx, `SELECT coalesce(max(quantity), 0) FROM checkout.stock WHERE sku = $1`, sku).Scan(&left)
	return left, err
}

func (s postgresShelf) put(ctx context.Context, sku string, left int64, token fence.Token) error {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	// The number of the zero token is 0.
	tag, err := s.pool.Exec(ctx, `INSERT INTO checkout.stock AS s (sku, quantity, fence) VALUES ($1, $2, $3)
		ON CONFLICT (sku) DO UPDATE SET quantity = excluded.quantity, fence = greatest(s.fence, excluded.fence)
		WHERE excluded.fence = 0 OR s.fence <= excluded.fence`, sku, left, token.Number)
	if err == nil && tag.RowsAffected() == 0 {
		return fence.ErrStale
	}
	return err
}
