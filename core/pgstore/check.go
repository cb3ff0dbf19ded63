package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/clockcheck"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

var _ store.Checker = (*Store)(nil)

// oldTransaction is the age at which an open transaction becomes a finding.
const oldTransaction = 10 * time.Second

// Check implements store.Checker. It finds:
//   - The server is a replica, or its transactions are read-only: steps are refused.
//   - A crash of the server loses transactions that it has acknowledged (fsync, full_page_writes,
//     synchronous_commit).
//   - A crash of the server empties tables: they are UNLOGGED, as the table of token buckets is by
//     default.
//   - A failover loses acknowledged transactions: it may be to a replica that the server does not
//     wait for (synchronous_standby_names).
//   - Pushes do not arrive, as through a pooler of transactions, or the store listens nowhere:
//     waiters notice their grants late.
//   - A transaction of the database is older than 10 s, or autovacuum is off: rows in constant use
//     become slower to change. Transactions of other users are visible only with the rights of
//     pg_read_all_stats.
//   - The server does not bound statements (statement_timeout), as through a pooler.
//   - The server's clock differs from this machine's by more than a second.
//
// As for every other call, it is an error if the transactions of a connection are not READ
// COMMITTED, or if the store does not work with the schema.
func (s *Store) Check(ctx context.Context) ([]store.Finding, error) {
	found, err := statement.Run(ctx, s.db, statement.Call{Operation: opInspect, Urgency: batch.Finishing}, s.check)
	if err != nil {
		return nil, err
	}
	listening, err := s.checkListening(ctx)
	if err != nil {
		return nil, err
	}
	return append(found, listening...), nil
}

// check returns the findings of one connection.
func (s *Store) check(ctx context.Context, c *pgx.Conn) (found []store.Finding, err error) {
	for _, check := range []func(context.Context, *pgx.Conn) ([]store.Finding, error){
		s.checkClock, s.checkSettings, s.checkReplicas, s.checkTables, s.checkTransactions,
	} {
		findings, err := check(ctx, c)
		if err != nil {
			return nil, err
		}
		found = append(found, findings...)
	}
	return found, nil
}

func (s *Store) checkClock(ctx context.Context, c *pgx.Conn) ([]store.Finding, error) {
	var shown time.Time
	sent := time.Now()
	if err := c.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&shown); err != nil {
		return nil, err
	}
	return clockcheck.Finding("the server", shown, sent, time.Now()), nil
}

// lostByCrash is the possible cost of a crash of the server.
const lostByCrash = "two may hold a lock, an operation that has finished may run again, and a task may never run, or run again"

// weak are settings and their values that weaken promises.
var weak = []struct {
	setting, value  string
	weakens, remedy string
	refused         store.Cause
}{
	{"transaction_read_only", "on", "every step but reads is refused",
		"Connect to the primary, and have default_transaction_read_only off", store.ReadOnly},
	{"fsync", "off", "a crash of the server's machine may lose or damage all data", "Set fsync to on", ""},
	{"full_page_writes", "off", "a crash of the server's machine may damage data", "Set full_page_writes to on", ""},
	{"synchronous_commit", "off", "a crash of the server loses its last acknowledged transactions: " + lostByCrash,
		"Set synchronous_commit to on for the store's user, by ALTER ROLE", ""},
	{"autovacuum", "off", "rows in constant use become slower to change, and tables grow without bound",
		"Set autovacuum to on", ""},
	{"statement_timeout", "0", "a statement whose caller has left may hold a row for as long as it likes",
		"Set statement_timeout to the store's timeout for the store's user, by ALTER ROLE", ""},
}

func (s *Store) checkSettings(ctx context.Context, c *pgx.Conn) (found []store.Finding, err error) {
	var lockTimeout string
	if err := c.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&lockTimeout); err != nil {
		return nil, err
	}
	if lockTimeout != "0" { // through a pooler of transactions
		found = append(found, store.Finding{
			Found:   "lock_timeout is " + lockTimeout,
			Weakens: "a step that waits for another one's row fails before the store's timeout",
			Remedy:  "Set lock_timeout to 0 for the store's user, by ALTER ROLE",
		})
	}
	for _, w := range weak {
		var value string
		if err := c.QueryRow(ctx, "SELECT current_setting($1)", w.setting).Scan(&value); err != nil {
			return nil, err
		}
		if value == w.value {
			found = append(found, store.Finding{
				Found: w.setting + " is " + w.value, Weakens: w.weakens, Remedy: w.remedy, Refused: w.refused,
			})
		}
	}
	return found, nil
}

func (s *Store) checkReplicas(ctx context.Context, c *pgx.Conn) ([]store.Finding, error) {
	var unsafe bool
	err := c.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_replication) AND "+
		"current_setting('synchronous_commit') <> 'off' AND "+
		"(current_setting('synchronous_standby_names') = '' OR current_setting('synchronous_commit') = 'local')").
		Scan(&unsafe)
	if err != nil || !unsafe {
		return nil, err
	}
	return []store.Finding{{
		Found:   "the server has replicas, and does not wait for them",
		Weakens: "a failover may lose its last acknowledged transactions: " + lostByCrash,
		Remedy:  "Set synchronous_standby_names, and synchronous_commit to on or remote_write",
	}}, nil
}

func (s *Store) checkTables(ctx context.Context, c *pgx.Conn) ([]store.Finding, error) {
	rows, err := c.Query(ctx, "SELECT relname::text FROM pg_class WHERE relnamespace = $1::regnamespace "+
		"AND relkind = 'r' AND relpersistence = 'u' ORDER BY relname", statement.Quoted(s.config.schema))
	if err != nil {
		return nil, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return nil, err
	}
	return []store.Finding{{
		Found: "these tables are UNLOGGED: " + strings.Join(names, ", "),
		Weakens: "a crash of the server, or a failover, empties them: " +
			"token buckets are full then, and a limit may be used once more",
		Remedy: "Accept that, or run ALTER TABLE … SET LOGGED, for which every charge costs a write to the disk",
	}}, nil
}

func (s *Store) checkTransactions(ctx context.Context, c *pgx.Conn) ([]store.Finding, error) {
	var (
		who string
		age float64
	)
	err := c.QueryRow(ctx, `SELECT who, age FROM (
		SELECT format('of process %s (%s)', pid, application_name) AS who,
			extract(epoch FROM clock_timestamp() - xact_start)::float8 AS age
		FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
			AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
		UNION ALL SELECT format('prepared as %L', gid), extract(epoch FROM clock_timestamp() - prepared)::float8
		FROM pg_prepared_xacts WHERE database = current_database()) t
		WHERE age >= $1 ORDER BY age DESC LIMIT 1`, s.config.old.Seconds()).Scan(&who, &age)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []store.Finding{{
		Found: fmt.Sprintf("a transaction %s has been open for %v", who, time.Duration(age)*time.Second),
		Weakens: "locks and token buckets in constant use become slower by the second, " +
			"since no version of their rows can be removed",
		Remedy: "End it, set idle_in_transaction_session_timeout, and make long reports and dumps on a replica",
	}}, nil
}

// checkListening checks by a push that pushes arrive.
func (s *Store) checkListening(ctx context.Context) ([]store.Finding, error) {
	const late = "a waiter notices within a second that it is granted, and not at once"
	if s.listen == nil {
		return []store.Finding{{
			Found: "the store listens to no pushes", Weakens: late,
			Remedy: "Give pgstore.WithTransactionPooler a DSN of the server itself",
		}}, nil
	}
	switch err := s.db.CheckListening(ctx); {
	case statement.IsReadOnly(err): // a replica does not let anybody listen, and was found already
		return nil, nil
	case errors.Is(err, statement.ErrUnheard):
		return []store.Finding{{
			Found: "what is sent by NOTIFY does not arrive where the store listens", Weakens: late,
			Remedy: "Through a pooler of transactions, give pgstore.WithTransactionPooler a DSN of the server itself",
		}}, nil
	default:
		return nil, err
	}
}
