package site

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Replica starts a replica of the only Redis server, and returns when it has its data.
func (s *Site) Replica(ctx context.Context) (*Server, error) {
	started, err := redisserver.StartIn(ctx, s.env(), durable...)
	if err != nil {
		return nil, err
	}
	r := newServer(started)
	if err = r.grant(ctx); err == nil {
		err = r.Follow(ctx, s.Servers[0])
	}
	if err == nil {
		err = r.InSync(ctx)
	}
	if err != nil {
		r.End()
		return nil, err
	}
	return r, nil
}

// Follow makes a server a replica of another one.
func (s *Server) Follow(ctx context.Context, master *Server) error {
	return s.Admin.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(master.Port())).Err()
}

// Offset is how much of the history of its data a server has.
func (s *Server) Offset(ctx context.Context) (int, error) {
	info, err := s.Admin.InfoMap(ctx, "replication").Result()
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(info["Replication"]["master_repl_offset"])
}

// Replace makes another server the only one: the workers' address leads to it from now on. Open
// connections stay with the old one, which the caller has to end.
func (s *Site) Replace(next *Server) {
	s.Servers = []*Server{next}
	s.moveTo(next.Addr())
}

func (s *Site) moveTo(addr string) {
	for _, p := range append(slices.Concat(s.proxies...), s.watched) {
		p.MoveTo(addr)
	}
}

// Standby starts a replica of the PostgreSQL server, and returns when it follows.
func (s *Site) Standby(ctx context.Context) (*Postgres, error) {
	started, err := s.Postgres.StartReplica(ctx)
	if err != nil {
		return nil, err
	}
	r, err := administer(ctx, started)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(r.Replies(ctx), s.Postgres.Replicated(ctx)); err != nil {
		r.End()
		return nil, err
	}
	return r, nil
}

// ReplacePostgres makes another server the only one, as Replace does.
func (s *Site) ReplacePostgres(next *Postgres) {
	s.Postgres = next
	s.moveTo(next.Addr())
}

// Replicated waits until a replica has applied all that the server has committed so far.
func (s *Postgres) Replicated(ctx context.Context) error {
	var committed string
	if err := s.Admin.QueryRow(ctx, "SELECT pg_current_wal_lsn()::text").Scan(&committed); err != nil {
		return err
	}
	return s.until(ctx, "SELECT count(*) > 0 FROM pg_stat_replication WHERE state = 'streaming' AND replay_lsn >= '"+committed+"'")
}

// until waits until a query returns true.
func (s *Postgres) until(ctx context.Context, query string) error {
	return Until(ctx, func() (holds bool) {
		return s.Admin.QueryRow(ctx, query).Scan(&holds) == nil && holds
	})
}

// Synchronous makes commits wait for a replica, and returns when they do, and it has those from
// before.
func (s *Postgres) Synchronous(ctx context.Context) error {
	if err := s.Configure(ctx, "synchronous_standby_names = '*'"); err != nil {
		return err
	}
	if err := s.until(ctx, "SELECT count(*) > 0 FROM pg_stat_replication WHERE sync_state = 'sync'"); err != nil {
		return err
	}
	return s.Replicated(ctx)
}

// Promote ends a replica's following of its primary, and returns when it takes writes. A replica that
// restarts forgets the request, so that is repeated.
func (s *Postgres) Promote(ctx context.Context) error {
	return Until(ctx, func() (promoted bool) {
		err := s.Admin.QueryRow(ctx, "SELECT CASE WHEN pg_is_in_recovery() THEN pg_promote(true, 1) ELSE true END").Scan(&promoted)
		return err == nil && promoted
	})
}

// Receiver returns the process of a replica that receives its primary's log.
func (s *Postgres) Receiver(ctx context.Context) (*os.Process, error) {
	var pid int
	if err := s.Admin.QueryRow(ctx, "SELECT pid FROM pg_stat_wal_receiver").Scan(&pid); err != nil {
		return nil, err
	}
	return os.FindProcess(pid)
}

// Configure sets settings of the server, such as "commit_delay = 20000", for all sessions.
func (s *Postgres) Configure(ctx context.Context, settings ...string) error {
	for _, setting := range settings {
		if _, err := s.Admin.Exec(ctx, "ALTER SYSTEM SET "+setting); err != nil {
			return err
		}
	}
	_, err := s.Admin.Exec(ctx, "SELECT pg_reload_conf()")
	return err
}

// Reply connects to the server anew, and returns when it replies.
func (s *Site) Reply(ctx context.Context) error {
	if s.Kind == "postgres" {
		conn, err := pgx.Connect(ctx, pgserver.DSN(s.watched.Addr(), workload.User))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	}
	client := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, s.watched.Addr())
	}})
	defer func() { _ = client.Close() }()
	return client.Ping(ctx).Err()
}
