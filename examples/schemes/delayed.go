package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// These are the common ways to do something later with Redis. The trials show how each of them
// fails: do not copy them.

// popped keeps tasks in a sorted set, by the time at which they are due. Who takes a task removes it
// in the same step, so that no other worker does it.
type popped struct {
	client *redis.Client
	key    string
	now    func() time.Time
}

func (q *popped) put(ctx context.Context, task string, after time.Duration) error {
	return q.client.ZAdd(ctx, q.key, redis.Z{Score: float64(q.now().Add(after).UnixMilli()), Member: task}).Err()
}

var popScript = redis.NewScript(`
	local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1)
	if due[1] then redis.call('ZREM', KEYS[1], due[1]) end
	return due[1] or ''`)

// take returns a task that is due by the clock of the client, or "".
func (q *popped) take(ctx context.Context) (string, error) {
	return popScript.Run(ctx, q.client, []string{q.key}, q.now().UnixMilli()).Text()
}

// expiring keeps a task as a key that expires, which Redis publishes.
type expiring struct {
	client *redis.Client
	prefix string
}

// put returns the key of the task.
func (q *expiring) put(ctx context.Context, task string, after time.Duration) (string, error) {
	key := q.prefix + ":" + task
	return key, q.client.Do(ctx, "SET", key, "", "PX", after.Milliseconds()).Err()
}

// listen subscribes to the tasks that are due from now on.
func (q *expiring) listen(ctx context.Context) (*redis.PubSub, error) {
	events := q.client.Subscribe(ctx, expiredEvents(q.client))
	_, err := events.Receive(ctx) // the confirmation
	return events, err
}

// expiredEvents is the channel of the keys of the client's database.
func expiredEvents(client *redis.Client) string {
	return "__keyevent@" + strconv.Itoa(client.Options().DB) + "__:expired"
}

// notifies makes the main server publish what expires, until the trial ends.
func (s *stage) notifies(ctx context.Context) error {
	if s.main.inside != nil { // awaitExpiry publishes it
		return nil
	}
	const setting = "notify-keyspace-events"
	client := s.process().client
	old, err := client.ConfigGet(ctx, setting).Result()
	if err != nil {
		return fmt.Errorf("read the setting %s: %w", setting, err)
	}
	if flags := old[setting]; strings.Contains(flags, "E") && strings.ContainsAny(flags, "xA") {
		return nil
	}
	if err := client.ConfigSet(ctx, setting, old[setting]+"Ex").Err(); err != nil {
		return fmt.Errorf("set %s: %w", setting, err)
	}
	s.closer = append(s.closer, func() {
		_ = client.ConfigSet(context.WithoutCancel(ctx), setting, old[setting]).Err()
	})
	return nil
}

// awaitExpiry waits until a key has expired. A server in this process does not publish that: it is
// done here, as Redis does it.
func (s *stage) awaitExpiry(ctx context.Context, client *redis.Client, key string) error {
	for {
		n, err := client.Exists(ctx, key).Result()
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if s.main.inside != nil {
		s.main.inside.Publish(expiredEvents(client), key)
	}
	return nil
}

// heard reports whether a subscriber gets a key, before the reply to a ping if there is one.
func heard(ctx context.Context, events *redis.PubSub, key string) (bool, error) {
	for {
		message, err := events.Receive(ctx)
		if err != nil {
			return false, err
		}
		switch m := message.(type) {
		case *redis.Message:
			if m.Payload == key {
				return true, nil
			}
		case *redis.Pong:
			return false, nil
		}
	}
}

// transferred keeps tasks in a sorted set, and moves due ones to a list, which consumers
// take them from. Only a process that has this object does that: it learns of new tasks by a
// subscription, and has a timer for the first one. That is how RDelayedQueue of Redisson works.
type transferred struct {
	client    *redis.Client
	set, list string
	channel   string
}

func newTransferred(s *stage, p *process) *transferred {
	return &transferred{client: p.client, set: s.key("set"), list: s.key("list"), channel: s.key("channel")}
}

func (q *transferred) put(ctx context.Context, task string, after time.Duration) error {
	due := time.Now().Add(after).UnixMilli()
	if err := q.client.ZAdd(ctx, q.set, redis.Z{Score: float64(due), Member: task}).Err(); err != nil {
		return err
	}
	return q.client.Publish(ctx, q.channel, due).Err()
}

var moveScript = redis.NewScript(`
	for _, task in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 100)) do
		redis.call('RPUSH', KEYS[2], task)
		redis.call('ZREM', KEYS[1], task)
	end
	local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
	return first[2] or ''`)

// open subscribes, and moves tasks until ctx ends. The channel is closed then.
func (q *transferred) open(ctx context.Context) (closed <-chan struct{}, err error) {
	news := q.client.Subscribe(ctx, q.channel)
	if _, err := news.Receive(ctx); err != nil {
		return nil, errors.Join(err, news.Close())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = news.Close() }()
		timer := time.NewTimer(0)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-news.Channel():
			case <-timer.C:
			}
			first, err := moveScript.Run(ctx, q.client, []string{q.set, q.list}, time.Now().UnixMilli()).Text()
			if due, convErr := strconv.ParseInt(first, 10, 64); err == nil && convErr == nil {
				timer.Reset(time.Until(time.UnixMilli(due)))
			}
		}
	}()
	return done, nil
}

// take returns a task from the list, or "".
func (q *transferred) take(ctx context.Context) (string, error) {
	task, err := q.client.LPop(ctx, q.list).Result()
	if errors.Is(err, redis.Nil) {
		return "", nil
	}
	return task, err
}
