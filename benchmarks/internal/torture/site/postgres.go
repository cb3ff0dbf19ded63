package site

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

// Postgres is a PostgreSQL server, with connections of its superuser, who is not the user of the
// workers.
type Postgres struct {
	*pgserver.Server
	Admin *pgxpool.Pool
}

func (s *Site) startPostgres(ctx context.Context, workers int) error {
	s.startClock(ctx)
	s.Missing = append(s.Missing, "a full disk: it would need a file system of its own")
	server, err := pgserver.StartIn(ctx, s.env(), "checkpoint_timeout=30s")
	if err != nil {
		return err
	}
	if s.Postgres, err = administer(ctx, server); err != nil {
		return err
	}
	admin := s.Postgres.Admin
	s.Version = "PostgreSQL " + pgserver.Version(ctx)
	if _, err := admin.Exec(ctx, "CREATE ROLE "+workload.User+" LOGIN"); err != nil {
		return err
	}
	if _, err := admin.Exec(ctx, "CREATE TABLE "+workload.Effects+" (subject text NOT NULL, operation text NOT NULL, text text NOT NULL); GRANT INSERT ON "+
		workload.Effects+" TO "+workload.User, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	for _, schema := range []string{workload.Schema, workload.SplitSchema} {
		if err := pgstore.Migrate(ctx, admin, pgstore.WithSchema(schema)); err != nil {
			return err
		}
		if err := s.Postgres.Grant(ctx, schema); err != nil {
			return err
		}
	}
	for range workers {
		p, err := NewPostgresProxy(server.Addr())
		if err != nil {
			return err
		}
		s.proxies = append(s.proxies, []*Proxy{p})
	}
	s.watched, err = NewPostgresProxy(server.Addr())
	return err
}

// administer returns a server with connections of its superuser. If that fails, it stops the
// server.
func administer(ctx context.Context, server *pgserver.Server) (*Postgres, error) {
	pool, err := pgxpool.New(ctx, server.DSN()+"&application_name="+admin)
	if err != nil {
		server.Stop()
		return nil, err
	}
	return &Postgres{server, pool}, nil
}

// Grant gives the workers' user the rights that they need.
func (s *Postgres) Grant(ctx context.Context, schema string) error {
	_, err := s.Admin.Exec(ctx, fmt.Sprintf(
		"GRANT USAGE ON SCHEMA %[1]s TO %[2]s; GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %[1]s TO %[2]s; "+
			"GRANT USAGE ON ALL SEQUENCES IN SCHEMA %[1]s TO %[2]s; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA %[1]s TO %[2]s",
		schema, workload.User), pgx.QueryExecModeSimpleProtocol)
	return err
}

// Tables returns the tables of the workers' state.
func (s *Postgres) Tables(ctx context.Context) (all []string, err error) {
	rows, err := s.Admin.Query(ctx, "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables "+
		"WHERE schemaname = $1 AND tablename <> 'schema_version' ORDER BY 1", workload.Schema)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// forget empties the tables.
func (s *Postgres) forget(ctx context.Context) error {
	tables, err := s.Tables(ctx)
	if err != nil || len(tables) == 0 {
		return err
	}
	for range 10 { // the workers lock tables in another order: the server may have to choose whom it lets go on
		if _, err = s.Admin.Exec(ctx, "TRUNCATE "+strings.Join(tables, ", ")); err == nil {
			break
		}
	}
	return err
}

// Effects returns the effects of operations and tasks that are in the database.
func (s *Postgres) Effects(ctx context.Context) ([]history.Event, error) {
	rows, err := s.Admin.Query(ctx, "SELECT subject, operation, text FROM "+workload.Effects)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (history.Event, error) {
		e := history.Event{Step: history.Committed}
		err := row.Scan(&e.Subject, &e.Key, &e.Text)
		return e, err
	})
}

// PIDs returns the processes of the server, but for the main one.
func (s *Postgres) PIDs(ctx context.Context) (all []int, err error) {
	rows, err := s.Admin.Query(ctx, "SELECT pid FROM pg_stat_activity")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[int])
}

// Replies waits until the server replies.
func (s *Postgres) Replies(ctx context.Context) error {
	return Until(ctx, func() bool { return s.Admin.Ping(ctx) == nil })
}

// Terminate ends connections of the workers, about so many of a hundred, and returns how many.
func (s *Postgres) Terminate(ctx context.Context, percent int) (n int64, err error) {
	tag, err := s.Admin.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '"+workload.User+
		"' AND random() * 100 < "+strconv.Itoa(percent))
	return tag.RowsAffected(), err
}

// EndTransactions ends the connections of the workers that are in a transaction, but for statements
// that end soon.
func (s *Postgres) EndTransactions(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_ = s.until(soon, "SELECT count(*) = 0 FROM pg_stat_activity WHERE state = 'active' AND usename = '"+workload.User+"'")
	_, err := s.Admin.Exec(ctx, "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity WHERE state <> 'idle' AND usename = '"+workload.User+"'")
	return err
}

// End stops the server, and ends the connections of its superuser.
func (s *Postgres) End() {
	s.Admin.Close()
	s.Stop()
}
