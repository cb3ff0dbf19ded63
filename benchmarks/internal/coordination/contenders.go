package coordination

import (
	"context"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/zkstore"
)

// The rows of locks.
const (
	lockkeeper      = "Lockkeeper"
	lockkeeperEtcd  = lockkeeper + " on etcd"
	lockkeeperZK    = lockkeeper + " on ZooKeeper"
	concurrencyLock = "concurrency.Mutex, on etcd"
	zkLock          = "zk.Lock, on ZooKeeper"
	ceiling         = "sync.Mutex (the ceiling)"
)

// contender is one whose clients are of a kind of server.
type contender struct {
	contest.Contender
	server kind
}

func (c contender) on() kind { return c.server }

// leases are the leases of locks, and of the sessions that they are in; zero ones are the defaults.
type leases struct {
	ttl     time.Duration // of Lockkeeper's locks on etcd
	session time.Duration // of everything else
}

// contenders are all contenders, as documented.
func contenders() []contender { return leased(leases{}) }

// leased are all contenders, with leases.
func leased(l leases) []contender {
	return []contender{
		{contest.Contender{Row: lockkeeperEtcd, Open: l.openEtcd}, etcd},
		{contest.Contender{Row: concurrencyLock, Open: l.openMutex}, etcd},
		{contest.Contender{Row: lockkeeperZK, Open: l.openZooKeeper}, zooKeeper},
		{contest.Contender{Row: zkLock, Open: l.openLock}, zooKeeper},
	}
}

// connectEtcd returns a client as etcdstore's documentation has it.
func connectEtcd(addr string) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{
		Endpoints:         []string{"http://" + addr},
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
		Logger: zap.NewNop(),
	})
}

// connectZooKeeper returns a connection with a session, or one of ten seconds.
func connectZooKeeper(addr string, session time.Duration) (*zk.Conn, error) {
	if session == 0 {
		session = 10 * time.Second
	}
	conn, _, err := zk.Connect([]string{addr}, session, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	return conn, err
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// site is a store of Lockkeeper as a process has it.
type site struct {
	store  store.Leases
	locker *lock.Locker
	end    func()
}

func (l leases) openEtcd(addr string) (contest.Client, error) {
	client, err := connectEtcd(addr)
	if err != nil {
		return nil, err
	}
	st, err := etcdstore.New(client, etcdstore.WithLogger(quiet))
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return newSite(st, l.ttl, func() {
		_ = st.Close()
		_ = client.Close()
	})
}

func (l leases) openZooKeeper(addr string) (contest.Client, error) {
	options := []zkstore.Option{zkstore.WithLogger(quiet)}
	if l.session != 0 {
		options = append(options, zkstore.WithSession(l.session))
	}
	st, err := zkstore.New([]string{addr}, options...)
	if err != nil {
		return nil, err
	}
	return newSite(st, l.session*4/5, func() { _ = st.Close() }) // the longest lease that the session allows
}

func newSite(st store.Leases, ttl time.Duration, end func()) (*site, error) {
	options := []lock.Option{lock.WithLogger(quiet)}
	if ttl != 0 {
		options = append(options, lock.WithTTL(ttl))
	}
	locker, err := lock.New(st, "bench", options...)
	if err != nil {
		end()
		return nil, err
	}
	return &site{st, locker, end}, nil
}

func (s *site) Lock(ctx context.Context, key string) (contest.Held, error) {
	held, err := s.locker.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return held, nil
}

// Waiting returns how many wait for a key.
func (s *site) Waiting(ctx context.Context, key string) (int, error) {
	state, err := s.locker.Inspect(ctx, key)
	return state.Waiting, err
}

func (s *site) Close() {
	_ = s.locker.Close()
	s.end()
}

// mutexes are the mutexes of a process on etcd.
type mutexes struct {
	client *clientv3.Client
	ttl    time.Duration // of sessions

	mu   sync.Mutex
	idle []*concurrency.Session
}

func (l leases) openMutex(addr string) (contest.Client, error) {
	client, err := connectEtcd(addr)
	if err != nil {
		return nil, err
	}
	return &mutexes{client: client, ttl: l.session}, nil
}

// take returns a session that no other goroutine uses.
func (m *mutexes) take() (*concurrency.Session, error) {
	m.mu.Lock()
	if last := len(m.idle) - 1; last >= 0 {
		s := m.idle[last]
		m.idle = m.idle[:last]
		m.mu.Unlock()
		return s, nil
	}
	m.mu.Unlock()
	var options []concurrency.SessionOption
	if m.ttl != 0 {
		options = append(options, concurrency.WithTTL(int(m.ttl.Seconds())))
	}
	return concurrency.NewSession(m.client, options...)
}

func (m *mutexes) give(s *concurrency.Session) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.idle = append(m.idle, s)
}

func (m *mutexes) Lock(ctx context.Context, key string) (contest.Held, error) {
	s, err := m.take()
	if err != nil {
		return nil, err
	}
	mutex := concurrency.NewMutex(s, mutexPrefix+key)
	if err := mutex.Lock(ctx); err != nil {
		m.give(s)
		return nil, err
	}
	return &mutexHeld{m, s, mutex}, nil
}

const mutexPrefix = "mutex/"

// Waiting returns how many wait for a key.
func (m *mutexes) Waiting(ctx context.Context, key string) (int, error) {
	reply, err := m.client.Get(ctx, mutexPrefix+key+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return int(reply.Count) - 1, nil
}

func (m *mutexes) Close() {
	for _, s := range m.idle {
		_ = s.Close()
	}
	_ = m.client.Close()
}

type mutexHeld struct {
	*mutexes
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (h *mutexHeld) Unlock(ctx context.Context) error {
	defer h.give(h.session)
	return h.mutex.Unlock(ctx)
}

// locks are the locks of a process on ZooKeeper. They know no contexts.
type locks struct{ conn *zk.Conn }

func (l leases) openLock(addr string) (contest.Client, error) {
	conn, err := connectZooKeeper(addr, l.session)
	if err != nil {
		return nil, err
	}
	return locks{conn}, nil
}

func lockPath(key string) string { return "/lock-" + key }

func (l locks) Lock(_ context.Context, key string) (contest.Held, error) {
	lock := zk.NewLock(l.conn, lockPath(key), zk.WorldACL(zk.PermAll))
	if err := lock.Lock(); err != nil {
		return nil, err
	}
	return lockHeld{lock}, nil
}

// Waiting returns how many wait for a key.
func (l locks) Waiting(_ context.Context, key string) (int, error) {
	children, _, err := l.conn.Children(lockPath(key))
	if err != nil {
		return 0, err
	}
	return len(children) - 1, nil
}

func (l locks) Close() { l.conn.Close() }

type lockHeld struct{ lock *zk.Lock }

func (h lockHeld) Unlock(context.Context) error { return h.lock.Unlock() }
