package tokens

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/goredisstore.v9"
	"github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The rows.
const (
	lockkeeper  = "Lockkeeper"
	remembering = "Lockkeeper, denials from memory"
	asking      = "Lockkeeper, denials from the store"
	redisRate   = "redis_rate"
	ulule       = "ulule/limiter"
	throttledGo = "throttled"
	byHand      = "rueidis, GCRA script by hand"
	inMemory    = "Lockkeeper's memory store (the ceiling)"
)

var (
	//go:embed gcra.lua
	gcra string
	//go:embed gcra_many.lua
	gcraMany string
)

// decide reports whether a key is allowed.
type decide func(ctx context.Context, key string) (allowed bool, err error)

// limiters are the clients and stores of the contenders on one Redis or Cluster.
type limiters struct {
	client  redis.UniversalClient // for the peers that use go-redis
	own     redis.UniversalClient // for Lockkeeper
	rueidis rueidis.Client
	store   *redisstore.Store
	asking  *redisstore.Store // without a denial cache
	memory  *memstore.Store
}

// open connects them, with the default settings of the clients: only Lockkeeper documents others.
func open(addrs ...string) (*limiters, error) {
	var l limiters
	l.client = redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
	l.own = redis.NewUniversalClient(&redis.UniversalOptions{
		Addrs: addrs, ContextTimeoutEnabled: true, ReadTimeout: 250 * time.Millisecond, WriteTimeout: 250 * time.Millisecond,
	})
	var err error
	if l.rueidis, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs, DisableCache: true}); err != nil {
		l.close()
		return nil, err
	}
	if l.store, err = redisstore.New(l.own); err != nil {
		l.close()
		return nil, err
	}
	if l.asking, err = redisstore.New(l.own, redisstore.WithPrefix("asking"), redisstore.WithoutDenialCache()); err != nil {
		l.close()
		return nil, err
	}
	l.memory = memstore.New()
	return &l, nil
}

func (l *limiters) close() {
	if l.memory != nil {
		l.memory.Close()
	}
	if l.asking != nil {
		l.asking.Close()
	}
	if l.store != nil {
		l.store.Close()
	}
	if l.rueidis != nil {
		l.rueidis.Close()
	}
	_ = l.own.Close()
	_ = l.client.Close()
}

// of returns the limiter of a row.
func (l *limiters) of(row string, limit limit) (decide, error) {
	switch row {
	case lockkeeper, remembering:
		return ours(l.store, limit)
	case asking:
		return ours(l.asking, limit)
	case inMemory:
		return ours(l.memory, limit)
	case redisRate:
		limiter, limit := redis_rate.NewLimiter(l.client), redis_rate.Limit{Rate: limit.tokens, Burst: limit.burst, Period: limit.period}
		return func(ctx context.Context, key string) (bool, error) {
			r, err := limiter.Allow(ctx, key, limit)
			return err == nil && r.Allowed > 0, err
		}, nil
	case ulule:
		st, err := ululeredis.NewStore(l.client)
		if err != nil {
			return nil, err
		}
		limiter := limiter.New(st, limiter.Rate{Period: limit.window(), Limit: int64(limit.burst)})
		return func(ctx context.Context, key string) (bool, error) {
			r, err := limiter.Get(ctx, key)
			return err == nil && !r.Reached, err
		}, nil
	case throttledGo:
		st, err := goredisstore.NewCtx(l.client, "throttled:")
		if err != nil {
			return nil, err
		}
		limiter, err := throttled.NewGCRARateLimiterCtx(st, throttled.RateQuota{
			MaxRate: throttled.PerDuration(limit.tokens, limit.period), MaxBurst: limit.burst - 1,
		})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, key string) (bool, error) {
			limited, _, err := limiter.RateLimitCtx(ctx, key, 1)
			return !limited, err
		}, nil
	case byHand:
		script, args := rueidis.NewLuaScript(gcra), []string{limit.cost(), limit.capacity()}
		return func(ctx context.Context, key string) (bool, error) {
			debt, err := script.Exec(ctx, l.rueidis, []string{key}, args).AsInt64()
			return debt >= 0, err
		}, nil
	default:
		return nil, fmt.Errorf("tokens: no limiter for %q", row)
	}
}

func ours(st store.Buckets, limit limit) (decide, error) {
	limiter, err := tokenbucket.New(st, "bench", tokenbucket.Per(int64(limit.tokens), limit.period).Burst(int64(limit.burst)))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, key string) (bool, error) {
		d, err := limiter.Allow(ctx, key)
		return d.Allowed, err
	}, nil
}
