package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/zkstore"
)

// kinds are the stores.
var kinds = []string{"memory", "redis", "postgres", "etcd", "zookeeper"}

// pinged is a store that has locks, and can say whether its server replies.
type pinged interface {
	store.Leases
	Ping(ctx context.Context) error
}

// openStore opens a store on a server, and returns what closes it.
func openStore(kind, addr string) (st pinged, end func(), err error) {
	switch kind {
	case "redis":
		client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
		st, err := redisstore.New(client)
		if err != nil {
			_ = client.Close()
			return nil, nil, err
		}
		return st, func() {
			_ = st.Close()
			_ = client.Close()
		}, nil
	case "postgres":
		st, err := pgstore.New(dsn(addr), pgstore.WithConnections(2))
		if err != nil {
			return nil, nil, err
		}
		return st, func() { _ = st.Close() }, nil
	case "etcd":
		client, err := clientv3.New(clientv3.Config{
			Endpoints:         []string{"http://" + addr},
			DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
			Logger: zap.NewNop(),
		})
		if err != nil {
			return nil, nil, err
		}
		st, err := etcdstore.New(client)
		if err != nil {
			_ = client.Close()
			return nil, nil, err
		}
		return st, func() {
			_ = st.Close()
			_ = client.Close()
		}, nil
	case "zookeeper": // a lease is at most four fifths of the session
		st, err := zkstore.New([]string{addr}, zkstore.WithSession(lease*5/4))
		if err != nil {
			return nil, nil, err
		}
		return st, func() { _ = st.Close() }, nil
	}
	return nil, nil, fmt.Errorf("no store %q on a server", kind)
}

// dsn is the URL of the first database of a PostgreSQL server of this program.
func dsn(addr string) string { return "postgres://postgres@" + addr + "/postgres?sslmode=disable" }

// replies returns nil once the server of a store can be used: for PostgreSQL, once it has the tables.
func replies(ctx context.Context, kind, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	if kind == "postgres" {
		pool, err := pgxpool.New(ctx, dsn(addr))
		if err != nil {
			return err
		}
		defer pool.Close()
		return pgstore.Migrate(ctx, pool)
	}
	st, end, err := openStore(kind, addr)
	if err != nil {
		return err
	}
	defer end()
	return st.Ping(ctx)
}
