package faults

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

var onPostgres = []string{"postgres"}

// postgres are faults of a PostgreSQL server.
func postgres() []Fault {
	all := []Fault{
		{
			Name: "pause of PostgreSQL", About: "all processes of the server are stopped",
			Inject: pausePostgres,
		},
		{
			Name: "crash", About: "the server is killed, and started again", Emptied: true,
			Inject: func(ctx context.Context, t *Target) (Hit, error) { return restartPostgres(ctx, t, t.Postgres.Kill) },
		},
		{
			Name: "planned restart", About: "the server is shut down without waiting for its clients, and started again",
			Inject: func(ctx context.Context, t *Target) (Hit, error) { return restartPostgres(ctx, t, t.Postgres.Shutdown) },
		},
		{
			Name: "crash of a backend", About: "one of the server's processes is killed, and the server ends the others and recovers",
			Emptied: true, Inject: killBackend,
		},
		terminate("terminated connections", "`pg_terminate_backend` for all, also those that listen", 100),
		terminate("some terminated connections", "the same for about half of them", 50),
		{
			Name: "locked rows", About: "a transaction locks all rows that are free, and is idle",
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				return inTransaction(ctx, t, pgx.ReadCommitted, "SELECT 1 FROM % FOR UPDATE SKIP LOCKED")
			},
		},
		{
			Name: "locked tables", About: "a transaction locks all tables, as one that alters them does, and is idle",
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				return inTransaction(ctx, t, pgx.ReadCommitted, "LOCK TABLE % IN ACCESS EXCLUSIVE MODE")
			},
		},
		{
			Name: "old transaction", About: "a transaction has a snapshot of all tables, and is idle",
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				return inTransaction(ctx, t, pgx.RepeatableRead, "SELECT count(*) FROM %")
			},
		},
		alter("no right to write", "`REVOKE` of all rights to the tables", 0,
			"REVOKE ALL ON ALL TABLES IN SCHEMA "+workload.Schema+" FROM "+workload.User, ""),
		alter("no right to log in", "`NOLOGIN`, and all connections are terminated", 100,
			"ALTER ROLE "+workload.User+" NOLOGIN", "ALTER ROLE "+workload.User+" LOGIN"),
		alter("serializable", "is the default isolation, and all connections are terminated", 100,
			"ALTER ROLE "+workload.User+" SET default_transaction_isolation = 'serializable'",
			"ALTER ROLE "+workload.User+" RESET default_transaction_isolation"),
		alter("read-only", "transactions by default, and all connections are terminated", 100,
			"ALTER ROLE "+workload.User+" SET default_transaction_read_only = on",
			"ALTER ROLE "+workload.User+" RESET default_transaction_read_only"),
		alter("few connections", "`CONNECTION LIMIT 2`, and all connections are terminated", 100,
			"ALTER ROLE "+workload.User+" CONNECTION LIMIT 2", "ALTER ROLE "+workload.User+" CONNECTION LIMIT -1"),
		{
			Name: "truncate", About: "`TRUNCATE` of all tables", Lost: true,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				return Hit{Target: t.Postgres.Addr(), Count: 1}, t.Forget(ctx)
			},
		},
	}
	for i := range all {
		all[i].stores = onPostgres
	}
	return all
}

// pausePostgres stops the server for a while: its main process first, which then starts no others.
func pausePostgres(ctx context.Context, t *Target) (hit Hit, err error) {
	hit.Target = t.Postgres.Addr()
	stopped := []*os.Process{t.Postgres.Process()}
	err = stopped[0].Signal(syscall.SIGSTOP)
	pids, listed := t.Postgres.PIDs(ctx)
	for _, pid := range pids {
		if process, found := os.FindProcess(pid); found == nil && process.Signal(syscall.SIGSTOP) == nil {
			stopped = append(stopped, process)
		}
	}
	t.last(ctx, 50*time.Millisecond, 3*time.Second)
	for _, process := range stopped {
		_ = process.Signal(syscall.SIGCONT) // it may have ended
	}
	hit.Count = int64(len(stopped))
	return hit, errors.Join(err, listed)
}

// restartPostgres ends the server, and starts it again after a while.
func restartPostgres(ctx context.Context, t *Target, end func()) (Hit, error) {
	end()
	t.last(ctx, 0, time.Second)
	ctx, cancel := mending(ctx)
	defer cancel()
	err := t.Postgres.Restart(ctx)
	if err == nil {
		err = t.Postgres.Replies(ctx)
	}
	return Hit{Target: t.Postgres.Addr(), Count: 1}, err
}

// killBackend kills the process of one of the workers' connections.
func killBackend(ctx context.Context, t *Target) (Hit, error) {
	hit := Hit{Target: t.Postgres.Addr(), Count: 1}
	own, err := t.Postgres.Admin.Acquire(ctx)
	if err != nil {
		return hit, err
	}
	defer own.Release()
	var pid int
	if err := own.QueryRow(ctx, "SELECT pid FROM pg_stat_activity WHERE usename = '"+workload.User+
		"' ORDER BY random() LIMIT 1").Scan(&pid); err != nil {
		return hit, err
	}
	process, err := os.FindProcess(pid)
	if err == nil {
		err = process.Kill()
	}
	if err != nil {
		return hit, err
	}
	ctx, cancel := mending(ctx)
	defer cancel()
	// The server ends this connection, too, before it recovers.
	if err := site.Until(ctx, func() bool { return own.Ping(ctx) != nil }); err != nil {
		return hit, err
	}
	return hit, t.Postgres.Replies(ctx)
}

func terminate(name, about string, percent int) Fault {
	return Fault{Name: name, About: about, Inject: func(ctx context.Context, t *Target) (Hit, error) {
		n, err := t.Postgres.Terminate(ctx, percent)
		return Hit{Target: t.Postgres.Addr(), Count: n}, err
	}}
}

// inTransaction executes a statement for each table, in one transaction that is idle for a while.
// The name of the table takes the place of %.
func inTransaction(ctx context.Context, t *Target, isolation pgx.TxIsoLevel, statement string) (Hit, error) {
	hit := Hit{Target: t.Postgres.Addr()}
	tables, err := t.Postgres.Tables(ctx)
	if err != nil {
		return hit, err
	}
	tx, err := t.Postgres.Admin.BeginTx(ctx, pgx.TxOptions{IsoLevel: isolation})
	if err != nil {
		return hit, err
	}
	for _, table := range tables {
		tag, err := tx.Exec(ctx, strings.ReplaceAll(statement, "%", table))
		if err != nil {
			break // such as a deadlock with the workers: what was locked is free again
		}
		hit.Count += max(tag.RowsAffected(), 1)
	}
	t.last(ctx, 200*time.Millisecond, 3*time.Second)
	ctx, cancel := mending(ctx)
	defer cancel()
	return hit, tx.Rollback(ctx)
}

// alter is a setting of the workers' user that is changed for a while. So many of a hundred
// connections are ended at its beginning and at its end, since it is for new ones. Without an end it
// is ended by granting all rights again.
func alter(name, about string, terminated int, begin, end string) Fault {
	change := func(ctx context.Context, t *Target, statement string) (int64, error) {
		var err error
		if statement == "" {
			err = t.Postgres.Grant(ctx, workload.Schema)
		} else {
			_, err = t.Postgres.Admin.Exec(ctx, statement)
		}
		if err != nil || terminated == 0 {
			return 1, err
		}
		return t.Postgres.Terminate(ctx, terminated)
	}
	return Fault{Name: name, About: about, Inject: func(ctx context.Context, t *Target) (Hit, error) {
		n, err := change(ctx, t, begin)
		t.last(ctx, 200*time.Millisecond, 1500*time.Millisecond)
		ctx, cancel := mending(ctx)
		defer cancel()
		_, ending := change(ctx, t, end)
		return Hit{Target: t.Postgres.Addr(), Count: n}, errors.Join(err, ending)
	}}
}
