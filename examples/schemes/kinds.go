package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/zkstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// kind is what keeps a lock.
type kind struct {
	name string
	// one starts servers that do not fail, and several those of which one fails.
	one, several func(h *host) *field
	// recipe returns the lock that the kind is known for, and keep Lockkeeper's store on it.
	recipe func(p *party, key string, ttl time.Duration) (holder, error)
	keep   func(p *party, ttl time.Duration) (store.Leases, error)
}

// field is the servers of a kind.
type field struct {
	addrs []string
	// fails has a server fail, and another one serve in its place, if there is one.
	fails func(parties ...*party)
	// syncs returns how often the servers have written to their disks, and waited for that.
	syncs func() (int, error)
}

// kinds returns all kinds of servers.
func kinds() []kind {
	return []kind{
		{"a row of PostgreSQL", onePostgres, twoPostgres, rowRecipe, keepRow},
		{"one Redis", oneRedis, twoRedis, redisRecipe, keepRedis},
		{"Redlock on five Redis", fiveRedis, fiveRedis, redlockRecipe, keepQuorum},
		{"ZooKeeper", oneZooKeeper, threeZooKeeper, zkRecipe, keepZooKeeper},
		{"etcd", oneEtcd, threeEtcd, etcdRecipe, keepEtcd},
	}
}

// quietly is the logger of stores and locks whose servers fail on purpose.
var quietly = slog.New(slog.DiscardHandler)

// aStep is the timeout of a step, on a busy machine.
const aStep = time.Second

// PostgreSQL.

func prepare(h *host, s *postgrestest.Server) {
	conn, err := pgx.Connect(detached(), s.DSN())
	if err == nil {
		_, err = conn.Exec(detached(), createRows)
	}
	if err == nil {
		err = errors.Join(pgstore.Migrate(detached(), conn), conn.Close(detached()))
	}
	if err != nil {
		h.Fatal(err)
	}
}

func onePostgres(h *host) *field {
	s := postgrestest.Start(h, "fsync=on")
	prepare(h, s)
	return &field{addrs: []string{s.Addr()}, syncs: func() (n int, err error) {
		conn, err := pgx.Connect(detached(), s.DSN())
		if err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, conn.Close(detached())) }()
		// A connection reports what it has done when it ends, or seconds later.
		if _, err := conn.Exec(detached(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
			WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`); err != nil {
			return 0, err
		}
		for _, text := range []string{"SELECT wal_sync FROM pg_stat_wal", "SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal'"} { // from 18 on
			if err = conn.QueryRow(detached(), text).Scan(&n); err == nil {
				break
			}
		}
		return n, err
	}}
}

// twoPostgres is a server, and a replica that lags behind it.
func twoPostgres(h *host) *field {
	s := postgrestest.Start(h)
	prepare(h, s)
	r := s.Replica()
	conn, err := pgx.Connect(detached(), r.DSN())
	if err == nil {
		_, err = conn.Exec(detached(), "ALTER SYSTEM SET primary_conninfo = ''")
	}
	if err == nil {
		_, err = conn.Exec(detached(), "SELECT pg_reload_conf()")
	}
	if err == nil {
		err = conn.Close(detached())
	}
	if err != nil {
		h.Fatal(err)
	}
	return &field{addrs: []string{s.Addr()}, fails: func(parties ...*party) {
		s.Kill()
		r.Promote()
		moveTo(r.Addr(), parties...)
	}}
}

// moveTo has processes reach another server at the address of the first one.
func moveTo(addr string, parties ...*party) {
	for _, p := range parties {
		p.wires[0].MoveTo(addr)
		p.wires[0].CutAll()
	}
}

func dsn(p *party) string {
	return "postgres://postgres@" + p.wires[0].Addr() + "/postgres?sslmode=disable"
}

func rowRecipe(p *party, key string, ttl time.Duration) (holder, error) {
	pool, err := pgxpool.New(detached(), dsn(p))
	if err != nil {
		return nil, err
	}
	p.Cleanup(pool.Close)
	return rowLock(pool, key, ttl), nil
}

func keepRow(p *party, _ time.Duration) (store.Leases, error) {
	s, err := pgstore.New(dsn(p), pgstore.WithTimeout(aStep), pgstore.WithConnections(4), pgstore.WithLogger(quietly))
	if err == nil {
		p.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// Redis.

// noSyncs is the number of waits for a disk of servers that write to it later, or not at all.
func noSyncs() (int, error) { return 0, nil }

func oneRedis(h *host) *field {
	return &field{addrs: []string{redistest.Start(h).Addr()}, syncs: noSyncs}
}

// twoRedis is a server, and a replica that has not got its latest writes.
func twoRedis(h *host) *field {
	s, r := redistest.Start(h), redistest.Start(h)
	return &field{addrs: []string{s.Addr()}, fails: func(parties ...*party) {
		s.Stop()
		moveTo(r.Addr(), parties...)
	}}
}

// fiveRedis are the masters of a Redlock. A process with the lock reaches the first three of them, of which the
// last one fails, and is there again without its memory.
func fiveRedis(h *host) *field {
	servers := make([]*redistest.Server, masters)
	f := &field{syncs: noSyncs}
	for i := range servers {
		servers[i] = redistest.Start(h)
		f.addrs = append(f.addrs, servers[i].Addr())
	}
	f.fails = func(parties ...*party) {
		servers[2].Restart()
		for _, w := range parties[0].wires[3:] {
			w.Mend()
		}
	}
	return f
}

func redisClient(p *party, addr string) *redis.Client {
	c := redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: aStep / 4, ReadTimeout: aStep / 4, WriteTimeout: aStep / 4,
	})
	p.Cleanup(func() { _ = c.Close() })
	return c
}

func redisRecipe(p *party, key string, ttl time.Duration) (holder, error) {
	return redisLock(redisClient(p, p.addrs()[0]), key, ttl), nil
}

func redlockRecipe(p *party, key string, ttl time.Duration) (holder, error) {
	var clients []*redis.Client
	for _, addr := range p.addrs() {
		clients = append(clients, redisClient(p, addr))
	}
	return redlockLock(clients, key, ttl), nil
}

func newRedisStore(p *party, addr string) (*redisstore.Store, error) {
	s, err := redisstore.New(redisClient(p, addr), redisstore.WithTimeout(aStep), redisstore.WithLogger(quietly))
	if err == nil {
		p.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

func keepRedis(p *party, _ time.Duration) (store.Leases, error) {
	return newRedisStore(p, p.addrs()[0])
}

func keepQuorum(p *party, _ time.Duration) (store.Leases, error) {
	var members []quorum.Member
	for _, addr := range p.addrs() {
		s, err := newRedisStore(p, addr)
		if err != nil {
			return nil, err
		}
		members = append(members, s)
	}
	q, err := quorum.New(members...)
	if err != nil {
		return nil, err
	}
	p.Cleanup(func() {
		ctx, cancel := context.WithTimeout(detached(), aStep)
		defer cancel()
		_ = q.Shutdown(ctx)
	})
	return q, nil
}

// ZooKeeper.

func oneZooKeeper(h *host) *field {
	s := zktest.Start(h, "forceSync=yes", "4lw.commands.whitelist=mntr")
	return &field{addrs: []string{s.Addr()}, syncs: func() (int, error) {
		conn, err := net.Dial("tcp", s.Addr())
		if err != nil {
			return 0, err
		}
		defer func() { _ = conn.Close() }()
		if _, err := io.WriteString(conn, "mntr"); err != nil {
			return 0, err
		}
		text, err := io.ReadAll(conn)
		if err != nil {
			return 0, err
		}
		return counted(text, `zk_cnt_fsynctime\s+(\d+)`)
	}}
}

// counted returns the number in a text.
func counted(text []byte, pattern string) (int, error) {
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	if found == nil {
		return 0, fmt.Errorf("a server does not tell %s", pattern)
	}
	return strconv.Atoi(string(found[1]))
}

func threeZooKeeper(h *host) *field {
	servers := zktest.StartThree(h)
	return &field{addrs: zktest.Addrs(servers), fails: func(...*party) {
		leader, _ := zktest.Leader(h, servers)
		leader.Kill()
	}}
}

// sessionFor is the session for a TTL, which is at most four fifths of it.
func sessionFor(ttl time.Duration) time.Duration { return ttl * 5 / 4 }

func zkRecipe(p *party, key string, ttl time.Duration) (holder, error) {
	l, stop, err := newZKLock(p.addrs(), key, ttl)
	if err == nil {
		p.Cleanup(stop)
	}
	return l, err
}

func keepZooKeeper(p *party, ttl time.Duration) (store.Leases, error) {
	s, err := zkstore.New(p.addrs(), zkstore.WithSession(sessionFor(ttl)), zkstore.WithTimeout(aStep), zkstore.WithLogger(quietly))
	if err == nil {
		p.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// etcd.

func oneEtcd(h *host) *field {
	s := etcdtest.Start(h)
	return &field{addrs: []string{s.Addr()}, syncs: func() (int, error) {
		reply, err := http.Get(s.URL() + "/metrics")
		if err != nil {
			return 0, err
		}
		defer func() { _ = reply.Body.Close() }()
		text, err := io.ReadAll(reply.Body)
		if err != nil {
			return 0, err
		}
		return counted(text, `(?m)^etcd_disk_wal_fsync_duration_seconds_count (\d+)`)
	}}
}

func threeEtcd(h *host) *field {
	members := etcdtest.StartCluster(h, 3)
	f := &field{fails: func(...*party) { etcdtest.Leader(h, members).Stop() }}
	for _, m := range members {
		f.addrs = append(f.addrs, m.Addr())
	}
	return f
}

// etcdClient returns a client that counts its calls.
func etcdClient(p *party) (*clientv3.Client, error) {
	c, err := clientv3.New(clientv3.Config{
		Endpoints: p.addrs(), DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(p.counts)},
	})
	if err == nil {
		p.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

func (p *party) counts(ctx context.Context, method string, req, reply any, to *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	p.calls.Add(1)
	return call(ctx, method, req, reply, to, opts...)
}

func etcdRecipe(p *party, key string, ttl time.Duration) (holder, error) {
	c, err := etcdClient(p)
	if err != nil {
		return nil, err
	}
	return newEtcdLock(c, key, ttl)
}

func keepEtcd(p *party, _ time.Duration) (store.Leases, error) {
	c, err := etcdClient(p)
	if err != nil {
		return nil, err
	}
	s, err := etcdstore.New(c, etcdstore.WithTimeout(aStep), etcdstore.WithLogger(quietly))
	if err == nil {
		p.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// kept is Lockkeeper's lock.
type kept struct {
	locker *lock.Locker
	key    string
	lease  *lock.Lease
}

func newKept(p *party, st store.Leases, key string, ttl time.Duration) (*kept, error) {
	l, err := lock.New(st, "trial", lock.WithTTL(ttl), lock.WithLogger(quietly))
	if err == nil {
		p.Cleanup(func() { _ = l.Close() })
	}
	return &kept{locker: l, key: key}, err
}

func (k *kept) lock(ctx context.Context) (err error) {
	k.lease, err = patiently(ctx, func(ctx context.Context, _ string) (*lock.Lease, error) { return k.locker.Lock(ctx, k.key) })
	return err
}

func (k *kept) unlock(ctx context.Context) error { return giveBack(ctx, k.lease) }

func (k *kept) over() <-chan struct{} { return k.lease.Context().Done() }

func (k *kept) write(d *document, text string) error { return d.setFenced(text, k.lease.Fence()) }
