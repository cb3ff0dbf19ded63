package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func (s *Store) latchKeys(name string) (tag string, keys []string) {
	tag = s.tag(name, "")
	stem := s.config.prefix + ofLatches + tag + "}"
	return tag, []string{stem + ":" + name, stem + "w"}
}

// CountDownLatch implements store.Latches: one script call.
func (s *Store) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	if s.hooks.Begun() {
		return 0, store.ErrClosed
	}
	tag, keys := s.latchKeys(req.Name)
	n, err := s.latch(ctx, countDownLatch, keys,
		s.tag(req.Name, participant), req.TTL.Milliseconds(), store.MaxParticipants, "open "+tag)
	if err == nil && n < 0 {
		return 0, fmt.Errorf("%w: a latch has at most %d participants", store.ErrFull, store.MaxParticipants)
	}
	return n, err
}

// InspectLatch implements store.Latches: one round trip.
func (s *Store) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	_, keys := s.latchKeys(req.Name)
	n := s.redis.Node(ctx, keys[0])
	return script.Do(ctx, n, script.Command{Operation: opInspect, Urgency: script.Reading}, func(ctx context.Context) (int, error) {
		if err := n.Check(ctx); err != nil {
			return 0, err
		}
		participants, err := s.client.SCard(ctx, keys[0]).Result()
		return int(participants), err
	})
}

// AwaitLatch implements store.Latches. It waits for a push, and checks every three seconds.
func (s *Store) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	tag, keys := s.latchKeys(req.Name)
	return s.waiting.AwaitPush(ctx, "open "+tag, func(bool) (bool, time.Duration, error) {
		n, err := s.latch(ctx, awaitLatch, keys, req.Count, s.inbox.channel, waiting.NoticeLife.Milliseconds())
		return n >= req.Count, 0, err
	})
}

// latch runs a script that returns the number of participants of a latch.
func (s *Store) latch(ctx context.Context, sc *script.Script, keys []string, args ...any) (int, error) {
	st := script.Step{Call: sc.Call(keys, args...), Operation: opLatch, Begins: true}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (int, error) { return script.Int(r.Value) })
}
