package locks

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
)

// lease is the lease duration of all contenders that have an option for it.
const lease = 30 * time.Second

// Contenders are Lockkeeper and its peers as documented; those that poll also have a row with an
// interval that suits locks held for a millisecond.
func Contenders() []contest.Contender {
	return []contest.Contender{
		{Row: ours, Open: Lockkeeper()},
		{Row: fair, Open: Lockkeeper(lock.WithFair())},
		{Row: "redsync", Sends: []string{"set"}, Open: openRedsync(redsync.WithExpiry(lease))},
		{Row: "redsync, polling every 1 ms", Tuned: true, Sends: []string{"set"}, Open: openRedsync(
			redsync.WithExpiry(lease), redsync.WithRetryDelay(time.Millisecond), redsync.WithTries(math.MaxInt32))},
		{Row: sparse, Open: openRedislock(100 * time.Millisecond)},
		{Row: polling, Tuned: true, Open: openRedislock(time.Millisecond)},
		{Row: "rueidislock", Open: openRueidislock(rueidislock.LockerOption{KeyMajority: 1, NoLoopTracking: true})},
	}
}

// Distant are the contenders for a distant Redis: with their defaults and, if these are for a near
// one, also with timeouts of a second.
func Distant() []contest.Contender {
	all := slices.DeleteFunc(Contenders(), func(c contest.Contender) bool { return c.Tuned || c.Row == fair })
	return append(all,
		Patient(),
		contest.Contender{Row: "rueidislock, TryNextAfter 1 s", Tuned: true, Open: openRueidislock(rueidislock.LockerOption{
			KeyMajority: 1, NoLoopTracking: true, TryNextAfter: time.Second,
		})},
	)
}

// Patient is Lockkeeper with timeouts of a second.
func Patient() contest.Contender {
	return contest.Contender{Row: "Lockkeeper, WithTimeout(1s)", Tuned: true, Open: lockkeeperWithin(time.Second)}
}

// Options is a note on the options of the contenders.
const Options = "Locks are leased for 30 s (rueidislock: 5 s, renewed). Lockkeeper: a go-redis client with ContextTimeoutEnabled " +
	"and timeouts of 250 ms, as its documentation recommends. redsync: one go-redis pool, its default of 32 tries " +
	"50 to 250 ms apart unless the row has another. redislock: LinearBackoff of 100 ms, as in its README, unless the row has " +
	"another. rueidislock: KeyMajority 1 and NoLoopTracking, as its README recommends for one Redis, and one Locker per process."

type lockkeeper struct {
	client *redis.Client
	store  *redisstore.Store
	locker *lock.Locker
}

// Lockkeeper opens Lockkeeper's locks with additional options.
func Lockkeeper(opts ...lock.Option) func(addr string) (contest.Client, error) {
	return lockkeeperWithin(250*time.Millisecond, opts...) // the store's default
}

func lockkeeperWithin(timeout time.Duration, opts ...lock.Option) func(addr string) (contest.Client, error) {
	return func(addr string) (contest.Client, error) {
		client := redis.NewClient(&redis.Options{
			Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: timeout, WriteTimeout: timeout,
		})
		quiet := slog.New(slog.DiscardHandler) // failures are counted
		store, err := redisstore.New(client, redisstore.WithTimeout(timeout), redisstore.WithLogger(quiet))
		if err != nil {
			return nil, err
		}
		locker, err := lock.New(store, "bench", append(opts, lock.WithLogger(quiet))...)
		if err != nil {
			return nil, err
		}
		return &lockkeeper{client, store, locker}, nil
	}
}

func (l *lockkeeper) Lock(ctx context.Context, key string) (contest.Held, error) {
	held, err := l.locker.Lock(ctx, key)
	if err != nil {
		return nil, err
	}
	return held, nil
}

// Waiting returns how many wait for a key.
func (l *lockkeeper) Waiting(ctx context.Context, key string) (int, error) {
	state, err := l.locker.Inspect(ctx, key)
	return state.Waiting, err
}

func (l *lockkeeper) Close() {
	_ = l.locker.Close()
	_ = l.store.Close()
	_ = l.client.Close()
}

type redsyncClient struct {
	client *redis.Client
	sync   *redsync.Redsync
	opts   []redsync.Option
}

func openRedsync(opts ...redsync.Option) func(addr string) (contest.Client, error) {
	return func(addr string) (contest.Client, error) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		return &redsyncClient{client, redsync.New(goredis.NewPool(client)), opts}, nil
	}
}

func (r *redsyncClient) Lock(ctx context.Context, key string) (contest.Held, error) {
	mutex := r.sync.NewMutex(key, r.opts...) // one for each hold: it has the state of its holder
	if err := mutex.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncHeld{mutex}, nil
}

func (r *redsyncClient) Close() { _ = r.client.Close() }

type redsyncHeld struct{ mutex *redsync.Mutex }

func (h redsyncHeld) Unlock(ctx context.Context) error {
	_, err := h.mutex.UnlockContext(ctx)
	return err
}

type redislockClient struct {
	client *redis.Client
	locker *redislock.Client
	opts   *redislock.Options
}

func openRedislock(poll time.Duration) func(addr string) (contest.Client, error) {
	return func(addr string) (contest.Client, error) {
		client := redis.NewClient(&redis.Options{Addr: addr})
		return &redislockClient{client, redislock.New(client), &redislock.Options{
			RetryStrategy: redislock.LinearBackoff(poll),
		}}, nil
	}
}

func (r *redislockClient) Lock(ctx context.Context, key string) (contest.Held, error) {
	held, err := r.locker.Obtain(ctx, key, lease, r.opts)
	if err != nil {
		return nil, err
	}
	return redislockHeld{held}, nil
}

func (r *redislockClient) Close() { _ = r.client.Close() }

type redislockHeld struct{ held *redislock.Lock }

func (h redislockHeld) Unlock(ctx context.Context) error { return h.held.Release(ctx) }

type rueidislockClient struct{ locker rueidislock.Locker }

func openRueidislock(opts rueidislock.LockerOption) func(addr string) (contest.Client, error) {
	return func(addr string) (contest.Client, error) {
		opts.ClientOption = rueidis.ClientOption{InitAddress: []string{addr}}
		locker, err := rueidislock.NewLocker(opts)
		if err != nil {
			return nil, err
		}
		return rueidislockClient{locker}, nil
	}
}

func (r rueidislockClient) Lock(ctx context.Context, key string) (contest.Held, error) {
	_, release, err := r.locker.WithContext(ctx, key)
	if err != nil {
		return nil, err
	}
	return rueidislockHeld(release), nil
}

func (r rueidislockClient) Close() { r.locker.Close() }

type rueidislockHeld context.CancelFunc

func (h rueidislockHeld) Unlock(context.Context) error {
	h()
	return nil
}
