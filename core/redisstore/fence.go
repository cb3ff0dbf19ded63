package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
)

// Methods for core/quorum.

// maxFence is the largest integer of a script's numbers.
const maxFence = 1<<53 - 1

// RaiseFence makes every later fence of the lock larger than least. A quorum of stores writes back
// the fence of a grant with it. It changes nothing if the fences are larger already.
func (s *Store) RaiseFence(ctx context.Context, name, key string, least int64) error {
	if least < 0 || least > maxFence {
		return errors.New("redisstore: RaiseFence: " + strconv.FormatInt(least, 10) + " is not a fence")
	}
	keys := s.leaseKeys(name, key)
	st := script.Step{Call: raiseFence.Call(keys[:], least, keys.linger()), Operation: opQuorum, Begins: true}
	_, err := script.Run(ctx, s.redis, st, func(r script.Reply) (any, error) { return r.Value, nil })
	return err
}

// Uptime returns how long the server has been running: at most the true time, and at most two
// seconds less. A quorum of stores leaves out a server that may have lost its grants. It returns an
// error that matches errors.ErrUnsupported if the client is not one of a single server, and one
// that matches store.ErrUnavailable if the server does not report it.
func (s *Store) Uptime(ctx context.Context) (time.Duration, error) {
	if _, ok := s.client.(*redis.Client); !ok {
		return 0, fmt.Errorf("redisstore: Uptime: not a client of a single server: %w", errors.ErrUnsupported)
	}
	return script.Do(ctx, s.redis.Whole(), script.Command{Operation: opInspect}, func(ctx context.Context) (time.Duration, error) {
		info, err := s.client.Info(ctx, "server").Result()
		if err != nil {
			return 0, err
		}
		text, ok := infoField(info, "uptime_in_seconds")
		seconds, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil {
			return 0, fmt.Errorf("redis: INFO has no uptime_in_seconds")
		}
		return time.Duration(max(seconds-1, 0)) * time.Second, nil
	})
}
