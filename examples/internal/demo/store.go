package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// RedisFlag adds the flag -redis, whose value is for [OpenStore].
func RedisFlag(flags *flag.FlagSet) *string {
	return flags.String("redis", "", "`URL` of a Redis server, such as redis://127.0.0.1:6379/0; state is kept in memory if not set")
}

// ParseURL returns the options of a Redis client. Its error names the flag.
func ParseURL(redisURL string) (*redis.Options, error) {
	options, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, fmt.Errorf("-redis: want a URL such as redis://127.0.0.1:6379/0: %w", err)
	}
	return options, nil
}

// OpenStore opens a store on a Redis, which has to reply, or without a URL in memory. kind is "redis"
// or "memory".
func OpenStore(ctx context.Context, redisURL string) (st store.Store, kind string, closeIt func() error, err error) {
	if redisURL == "" {
		st := memstore.New()
		return st, "memory", st.Close, nil
	}
	options, err := ParseURL(redisURL)
	if err != nil {
		return nil, "", nil, err
	}
	options.ContextTimeoutEnabled = true
	client := redis.NewClient(options)
	st, err = redisstore.New(client)
	if err != nil {
		return nil, "", nil, errors.Join(err, client.Close())
	}
	closeIt = func() error { return errors.Join(st.Close(), client.Close()) } // the client is ours
	if err := st.Ping(ctx); err != nil {
		return nil, "", nil, errors.Join(fmt.Errorf("-redis: no reply from %s: %w", options.Addr, err), closeIt())
	}
	return st, "redis", closeIt, nil
}
