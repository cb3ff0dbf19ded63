package main

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

// These are the locks that each kind of server is known for: a row with an expiry, the lock of the Redis
// documentation on one server and on a majority, and the recipes of the clients of ZooKeeper and etcd.

// holder is a lock of one process.
type holder interface {
	// lock waits until it has the lock.
	lock(ctx context.Context) error
	unlock(ctx context.Context) error
	// over is closed when the holder learns that it has lost the lock; it is nil if a holder never learns that.
	over() <-chan struct{}
	// write writes a document, as a process does that has checked long ago that it has the lock.
	write(d *document, text string) error
}

// unfenced is what a holder has whose scheme has no fence, and tells it of no end.
type unfenced struct{}

func (unfenced) over() <-chan struct{} { return nil }

func (unfenced) write(d *document, text string) error { //nolint:unparam // as a holder with a fence
	d.set(text)
	return nil
}

// polling locks by tries.
type polling struct {
	unfenced
	try  func(ctx context.Context) (bool, error)
	free func(ctx context.Context) error
}

func (p polling) lock(ctx context.Context) error {
	for {
		if ok, err := p.try(ctx); ok || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

func (p polling) unlock(ctx context.Context) error { return p.free(ctx) }

// createRows creates the table of rowLock.
const createRows = `CREATE TABLE IF NOT EXISTS locks (key text PRIMARY KEY, owner text NOT NULL, until timestamptz NOT NULL)`

// rowLock is a row of a table, with its owner and its expiry by the clock of the database.
func rowLock(pool *pgxpool.Pool, key string, ttl time.Duration) holder {
	mine := rand.Text()
	return polling{
		try: func(ctx context.Context) (bool, error) {
			done, err := pool.Exec(ctx, `INSERT INTO locks (key, owner, until) VALUES ($1, $2, now() + $3)
				ON CONFLICT (key) DO UPDATE SET owner = excluded.owner, until = excluded.until WHERE locks.until < now()`, key, mine, ttl)
			return err == nil && done.RowsAffected() == 1, err
		},
		free: func(ctx context.Context) error {
			_, err := pool.Exec(ctx, `DELETE FROM locks WHERE key = $1 AND owner = $2`, key, mine)
			return err
		},
	}
}

func redisLock(client *redis.Client, key string, ttl time.Duration) holder {
	l := &compareAndDelete{client: client, key: key, ttl: ttl}
	return polling{try: l.lock, free: l.unlock}
}

func redlockLock(clients []*redis.Client, key string, ttl time.Duration) holder {
	l := &redlock{clients: clients, key: key, ttl: ttl}
	return polling{try: l.lock, free: func(ctx context.Context) error {
		l.unlock(ctx)
		return nil
	}}
}

// zkLock is the recipe of the client of ZooKeeper. It tells its holder of nothing; the client tells of the end
// of the session when it has connected again.
type zkLock struct {
	unfenced
	recipe *zk.Lock
	ended  chan struct{}
}

func newZKLock(servers []string, key string, ttl time.Duration) (l *zkLock, stop func(), err error) {
	l = &zkLock{ended: make(chan struct{})}
	conn, events, err := zk.Connect(servers, ttl, zk.WithLogger(silent{}))
	if err != nil {
		return nil, nil, err
	}
	go func() {
		told := false
		for e := range events {
			if e.State == zk.StateExpired && !told {
				told = true
				close(l.ended)
			}
		}
	}()
	l.recipe = zk.NewLock(conn, "/recipe/"+key, zk.WorldACL(zk.PermAll))
	return l, conn.Close, nil
}

// silent is a logger of the client of ZooKeeper.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (l *zkLock) over() <-chan struct{} { return l.ended }

func (l *zkLock) lock(ctx context.Context) error { return within(ctx, l.recipe.Lock) }

// unlock returns nil if an earlier call, whose reply was lost, has released the lock: its node is gone, and
// the session has not ended.
func (l *zkLock) unlock(ctx context.Context) error {
	err := within(ctx, l.recipe.Unlock)
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	select {
	case <-l.ended:
		return err
	default:
		return nil
	}
}

// within calls a function that has no context.
func within(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// etcdLock is the recipe of the client of etcd, on a session of its own.
type etcdLock struct {
	unfenced
	mutex   *concurrency.Mutex
	session *concurrency.Session
}

func newEtcdLock(client *clientv3.Client, key string, ttl time.Duration) (*etcdLock, error) {
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(math.Ceil(ttl.Seconds()))))
	if err != nil {
		return nil, err
	}
	return &etcdLock{mutex: concurrency.NewMutex(session, "/recipe/"+key), session: session}, nil
}

func (l *etcdLock) over() <-chan struct{} { return l.session.Done() }

func (l *etcdLock) lock(ctx context.Context) error { return l.mutex.Lock(ctx) }

func (l *etcdLock) unlock(ctx context.Context) error { return l.mutex.Unlock(ctx) }
