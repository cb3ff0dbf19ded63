package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// rollbackTimeout bounds a rollback. The connection is closed after it, which rolls back as well.
const rollbackTimeout = time.Second

// pgxConnection is a connection of a pool of pgx. It sends the beginning and the end of a
// transaction together with the statements next to them.
type pgxConnection struct {
	pool *pgxpool.Pool
	conn *pgxpool.Conn
	tx   *boundTx
}

func (p *pgxConnection) begin(ctx context.Context, query string, args []any, into ...any) (err error) {
	if p.conn, err = p.pool.Acquire(ctx); err != nil {
		return err
	}
	p.tx = &boundTx{conn: p.conn.Conn()}
	var batch pgx.Batch
	batch.Queue("begin")
	if query != "" {
		batch.Queue(query, args...).QueryRow(func(row pgx.Row) error { return row.Scan(into...) })
	}
	return p.conn.SendBatch(ctx, &batch).Close()
}

func (p *pgxConnection) query(ctx context.Context, query string, args []any, into ...any) error {
	if p.tx.end(); p.tx.undone {
		return pgx.ErrTxCommitRollback
	}
	return p.conn.QueryRow(ctx, query, args...).Scan(into...)
}

func (p *pgxConnection) commit(ctx context.Context, query string, args []any, into ...any) error {
	if p.tx.end(); p.tx.undone {
		return pgx.ErrTxCommitRollback
	}
	var batch pgx.Batch
	if query != "" {
		batch.Queue(query, args...).QueryRow(func(row pgx.Row) error { return row.Scan(into...) })
	}
	batch.Queue("commit").Exec(func(tag pgconn.CommandTag) error {
		if tag.String() == "ROLLBACK" {
			return pgx.ErrTxCommitRollback
		}
		return nil
	})
	return p.conn.SendBatch(ctx, &batch).Close()
}

func (p *pgxConnection) rollback() {
	if p.conn == nil {
		return
	}
	p.tx.end()
	if c := p.conn.Conn().PgConn(); !c.IsClosed() && c.TxStatus() != 'I' {
		ctx, cancel := context.WithTimeout(context.Background(), rollbackTimeout)
		_, _ = p.conn.Exec(ctx, "rollback")
		cancel()
	}
	p.conn.Release()
	p.conn = nil
}

// sqlConnection is a connection of database/sql.
type sqlConnection struct {
	db     *sql.DB
	tx     *sql.Tx
	cancel context.CancelFunc // of the transaction's context
}

func (q *sqlConnection) begin(ctx context.Context, query string, args []any, into ...any) (err error) {
	open, cancel := context.WithCancel(context.WithoutCancel(ctx)) // its end rolls back
	stop := context.AfterFunc(ctx, cancel)
	q.tx, err = q.db.BeginTx(open, nil)
	if !stop() {
		err = context.Cause(ctx)
	}
	q.cancel = cancel
	if err != nil || query == "" {
		return err
	}
	return q.query(ctx, query, args, into...)
}

func (q *sqlConnection) query(ctx context.Context, query string, args []any, into ...any) error {
	return q.tx.QueryRowContext(ctx, query, args...).Scan(into...)
}

func (q *sqlConnection) commit(ctx context.Context, query string, args []any, into ...any) error {
	if query != "" {
		if err := q.query(ctx, query, args, into...); err != nil {
			return err
		}
	}
	defer context.AfterFunc(ctx, q.cancel)()
	return q.tx.Commit()
}

func (q *sqlConnection) rollback() {
	if q.tx != nil {
		_ = q.tx.Rollback() // it may have ended
		q.tx = nil
	}
	if q.cancel != nil {
		q.cancel()
	}
}

var errDoCommits = errors.New("pgstore: Do commits the transaction when fn returns")

// boundTx is the transaction of [Do] as fn gets it. Do ends it.
type boundTx struct {
	conn   *pgx.Conn
	own    pgx.Tx // pgx's own object for it, if it was needed
	over   bool
	undone bool // fn has called Rollback
}

func (t *boundTx) end() { t.over = true }

func (t *boundTx) err() error {
	if t.over {
		return pgx.ErrTxClosed
	}
	return nil
}

// pgx returns pgx's own object for the transaction, which has begun already.
func (t *boundTx) pgx(ctx context.Context) (tx pgx.Tx, err error) {
	if t.own == nil && !t.over {
		t.own, err = t.conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: ";"})
	}
	return t.own, errors.Join(err, t.err())
}

// Begin sets a savepoint.
func (t *boundTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.pgx(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Begin(ctx)
}

func (t *boundTx) Commit(context.Context) error { return errors.Join(errDoCommits, t.err()) }

// Rollback makes Do roll back when fn returns.
func (t *boundTx) Rollback(context.Context) error {
	if err := t.err(); err != nil {
		return err
	}
	t.end()
	t.undone = true
	return nil
}

func (t *boundTx) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource,
) (int64, error) {
	if t.over {
		return 0, pgx.ErrTxClosed
	}
	return t.conn.CopyFrom(ctx, table, columns, rows)
}

func (t *boundTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if t.over {
		return closedBatch{}
	}
	return t.conn.SendBatch(ctx, b)
}

func (t *boundTx) LargeObjects() pgx.LargeObjects {
	tx, err := t.pgx(context.Background())
	if err != nil {
		return pgx.LargeObjects{}
	}
	return tx.LargeObjects()
}

func (t *boundTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	if t.over {
		return nil, pgx.ErrTxClosed
	}
	return t.conn.Prepare(ctx, name, sql)
}

func (t *boundTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if t.over {
		return pgconn.CommandTag{}, pgx.ErrTxClosed
	}
	return t.conn.Exec(ctx, sql, args...)
}

func (t *boundTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if t.over {
		return closedBatch{}.Query()
	}
	return t.conn.Query(ctx, sql, args...)
}

func (t *boundTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if t.over {
		return closedBatch{}
	}
	return t.conn.QueryRow(ctx, sql, args...)
}

func (t *boundTx) Conn() *pgx.Conn { return t.conn }

// closedBatch is the result of every call on a transaction that is over.
type closedBatch struct {
	pgx.BatchResults // nil: later releases of pgx have further methods
}

func (closedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, pgx.ErrTxClosed }
func (closedBatch) Query() (pgx.Rows, error)         { return nil, pgx.ErrTxClosed }
func (closedBatch) QueryRow() pgx.Row                { return closedBatch{} }
func (closedBatch) Scan(...any) error                { return pgx.ErrTxClosed }
func (closedBatch) Close() error                     { return pgx.ErrTxClosed }
