package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// What a core/quorum needs besides.

// maxFence is the largest number that a script can count to.
const maxFence = 1<<53 - 1

// RaiseFence has every fence that the lock gives from now on be larger than least. A quorum of
// stores writes back with it what a majority has to know. It changes nothing if the fences are
// beyond that already.
func (s *Store) RaiseFence(ctx context.Context, name, key string, least int64) error {
	if least < 0 || least > maxFence {
		return errors.New("redisstore: RaiseFence: " + strconv.FormatInt(least, 10) + " is not a fence")
	}
	keys := s.lockKeys(name, key, "")
	st := step{scriptCall: scriptCall{raiseFence, []string{keys.fence()}, []any{least}}, op: opQuorum, begins: true}
	_, err := run(ctx, s, st, func(r stepReply) (any, error) { return r.value, nil })
	return err
}

// Uptime is for how long the server has been running: no longer than that, and at most two seconds
// longer than it says. A quorum of stores leaves out a server that may have forgotten what it
// granted. It returns an error that matches errors.ErrUnsupported if the client is not one of a
// single server, and one that matches store.ErrUnavailable if the server does not say.
func (s *Store) Uptime(ctx context.Context) (time.Duration, error) {
	if _, ok := s.client.(*redis.Client); !ok {
		return 0, fmt.Errorf("redisstore: Uptime: not a client of a single server: %w", errors.ErrUnsupported)
	}
	return call(ctx, s.nodes.whole, opInspect, ordinary, func(ctx context.Context) (time.Duration, error) {
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
