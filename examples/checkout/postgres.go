package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/delay"
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
CREATE TABLE IF NOT EXISTS checkout.placed (name text PRIMARY KEY, owner text NOT NULL, text text NOT NULL, status text NOT NULL, charge text NOT NULL);
CREATE INDEX IF NOT EXISTS placed_by_owner ON checkout.placed (owner);
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
	book := func(timers *delay.Queue) orderBook { return postgresOrders{pool, timers} }
	return state{"postgres", st, postgresNotebook{pool, "charges"}, postgresNotebook{pool, "orders"}, postgresShelf{pool}, book, func() error {
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

// postgresOrders are shared by all instances, and in the database of the timers: what belongs
// together is one transaction.
type postgresOrders struct {
	pool   *pgxpool.Pool
	timers *delay.Queue
}

// place commits the order, its stock, its timer and the record of its attempt together.
func (o postgresOrders) place(ctx context.Context, p placing) (status, error) {
	text, err := json.Marshal(p.placed)
	if err != nil {
		return "", err
	}
	payload, err := json.Marshal(p.expiry())
	if err != nil {
		return "", err
	}
	return unpaid, o.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE checkout.stock SET quantity = quantity - $2 WHERE sku = $1 AND quantity >= $2`, p.SKU, p.Quantity)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return errSoldOut
		}
		if _, err := tx.Exec(ctx, `INSERT INTO checkout.placed (name, owner, text, status, charge) VALUES ($1, $2, $3, 'unpaid', '')`,
			placedKey(p.owner, p.ID), p.owner, string(text)); err != nil {
			return err
		}
		if _, err := pgstore.PutTask(ctx, tx, o.timers, p.ID, payload, p.within); err != nil {
			return err
		}
		return pgstore.Complete(ctx, tx, p.attempt, p.answer)
	})
}

// pay commits the payment, the end of its timer and the record of its attempt together.
func (o postgresOrders) pay(ctx context.Context, p placing) (s status, err error) {
	s = paid
	name := placedKey(p.owner, p.ID)
	err = o.transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `UPDATE checkout.placed SET status = 'paid', charge = $2 WHERE name = $1 AND status = 'unpaid'`, name, p.ChargeID)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return tx.QueryRow(ctx, `SELECT status FROM checkout.placed WHERE name = $1`, name).Scan(&s)
		}
		if _, err := pgstore.CancelTask(ctx, tx, o.timers, p.ID); err != nil {
			return err
		}
		return pgstore.Complete(ctx, tx, p.attempt, p.answer)
	})
	return s, err
}

func (o postgresOrders) cancel(ctx context.Context, e expiry) (s status, err error) {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	name := placedKey(e.Owner, e.ID)
	if _, err := o.pool.Exec(ctx, `
		WITH ended AS (UPDATE checkout.placed SET status = 'cancelled' WHERE name = $1 AND status = 'unpaid' RETURNING name)
		UPDATE checkout.stock SET quantity = quantity + $3 WHERE sku = $2 AND EXISTS (SELECT FROM ended)`,
		name, e.SKU, e.Quantity); err != nil {
		return "", err
	}
	err = o.pool.QueryRow(ctx, `SELECT coalesce(max(status), '') FROM checkout.placed WHERE name = $1`, name).Scan(&s)
	return s, err
}

func (o postgresOrders) find(ctx context.Context, owner, id string) (placed, bool, error) {
	all, err := o.query(ctx, `name = $1`, placedKey(owner, id))
	if err != nil || len(all) == 0 {
		return placed{}, false, err
	}
	return all[0], true, nil
}

func (o postgresOrders) list(ctx context.Context, owner string) ([]placed, error) {
	all, err := o.query(ctx, `owner = $1`, owner)
	return latest(all), err
}

func (o postgresOrders) query(ctx context.Context, where, arg string) ([]placed, error) {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	rows, err := o.pool.Query(ctx, `SELECT text, status, charge FROM checkout.placed WHERE `+where+`
		ORDER BY (text::json->>'placed_at')::bigint DESC LIMIT $2`, arg, maxOrders)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (placed, error) {
		var text, s, chargeID string
		if err := row.Scan(&text, &s, &chargeID); err != nil {
			return placed{}, err
		}
		return readPlaced(text, status(s), chargeID)
	})
}

func (o postgresOrders) transact(ctx context.Context, fn func(context.Context, pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, postgresTimeout)
	defer cancel()
	return pgx.BeginFunc(ctx, o.pool, func(tx pgx.Tx) error { return fn(ctx, tx) })
}

// placedKey is the name of an order, with its owner. The quotes keep out what a database refuses.
func placedKey(owner, id string) string { return fmt.Sprintf("%s:%q", owner, id) }
