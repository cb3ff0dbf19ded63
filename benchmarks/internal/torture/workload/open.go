package workload

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/zkstore"
)

// Address says where a worker's store is.
type Address struct {
	Kind      string            // redis, cluster, sentinel, postgres, memory, or one of the following
	Addrs     []string          // of servers; of postgres, etcd and zookeeper, of the proxy in front of it
	Sentinels []string          // of sentinels
	Via       map[string]string // the proxies in front of servers
}

// The kinds of stores that have locks and semaphores only.
const (
	Etcd      = "etcd"
	ZooKeeper = "zookeeper"
)

// MasterName is the name of the master behind sentinels.
const MasterName = "torture"

const (
	// User is the name of the workers on a PostgreSQL server.
	User = "worker"
	// Schema is that of their tables.
	Schema = "lk"
	// SplitSchema is that of the tables of workers with the bug [Split].
	SplitSchema = "split"
)

// Bug is a planted bug of a worker, which the checker must find.
type Bug string

const (
	// Split keeps the worker's state apart from that of the others, so that nothing excludes them.
	Split Bug = "split"
	// Generous raises the worker's capacities and rates.
	Generous Bug = "generous"
	// Hasty puts the worker's tasks with half of their delays.
	Hasty Bug = "hasty"
)

func (b Bug) capacity(n int) int {
	if b == Generous {
		return n + heaviest
	}
	return n
}

// keeper is what all stores have. Those with all mechanisms are a store.Store.
type keeper interface {
	store.Leases
	Shutdown(ctx context.Context) error
}

// open returns the store of a job, and what closes it.
func open(job Job) (st keeper, stop func(), err error) {
	if job.Store.Kind == "memory" {
		st := memstore.New()
		return st, func() { _ = st.Close() }, nil
	}
	if job.Store.Kind == "postgres" {
		schema := Schema
		if job.Bug == Split {
			schema = SplitSchema
		}
		st, err := pgstore.New(pgserver.DSN(job.Store.Addrs[0], User), pgstore.WithSchema(schema))
		if err != nil {
			return nil, nil, err
		}
		return st, func() { _ = st.Close() }, nil
	}
	if job.Store.Kind == Etcd || job.Store.Kind == ZooKeeper {
		return openLeases(job)
	}
	client, err := job.Store.client()
	if err != nil {
		return nil, nil, err
	}
	var options []redisstore.Option
	if job.Bug == Split {
		options = append(options, redisstore.WithPrefix("split"))
	}
	redisStore, err := redisstore.New(client, options...)
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return redisStore, func() {
		_ = redisStore.Close()
		_ = client.Close()
	}, nil
}

// session is the length of sessions on ZooKeeper: that of a process that was killed keeps others waiting.
const session = 3 * time.Second

// openLeases is open for stores that have locks and semaphores only.
func openLeases(job Job) (st keeper, stop func(), err error) {
	prefix := "lockkeeper"
	if job.Bug == Split {
		prefix = "split"
	}
	addr := job.Store.Addrs[0]
	if job.Store.Kind == ZooKeeper {
		st, err := zkstore.New([]string{addr}, zkstore.WithPrefix(prefix), zkstore.WithSession(session))
		if err != nil {
			return nil, nil, err
		}
		return st, func() { _ = st.Close() }, nil
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints:         []string{"http://" + addr},
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, nil, err
	}
	etcdStore, err := etcdstore.New(client, etcdstore.WithPrefix(prefix))
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return etcdStore, func() {
		_ = etcdStore.Close()
		_ = client.Close()
	}, nil
}

// client returns a client of servers behind proxies.
func (a Address) client() (redis.UniversalClient, error) {
	const timeout, pool = time.Second, 40
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if via := a.Via[addr]; via != "" {
			addr = via
		}
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
	switch a.Kind {
	case "redis":
		return redis.NewClient(&redis.Options{
			Addr: a.Addrs[0], Dialer: dial, ContextTimeoutEnabled: true,
			ReadTimeout: timeout, WriteTimeout: timeout, DialTimeout: timeout, PoolSize: pool,
		}), nil
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: a.Addrs, Dialer: dial, ContextTimeoutEnabled: true,
			ReadTimeout: timeout, WriteTimeout: timeout, DialTimeout: timeout, PoolSize: pool,
		}), nil
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: MasterName, SentinelAddrs: a.Sentinels, Dialer: dial, ContextTimeoutEnabled: true,
			ReadTimeout: timeout, WriteTimeout: timeout, DialTimeout: timeout, PoolSize: pool,
		}), nil
	}
	return nil, fmt.Errorf("no store %q", a.Kind)
}
