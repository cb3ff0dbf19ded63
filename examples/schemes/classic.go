package main

import (
	"context"
	"crypto/rand"
	"errors"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// These are the locks on Redis of common tutorials, each better than the one before. The trials
// show how each of them fails: do not copy them.

// scheme is an algorithm for a lock.
type scheme interface {
	// lock tries once, without waiting.
	lock(ctx context.Context) (bool, error)
	unlock(ctx context.Context) error
}

// setnxThenExpire locks with one command and sets the expiry with another.
type setnxThenExpire struct {
	client *redis.Client
	key    string
	ttl    time.Duration
}

func (l *setnxThenExpire) lock(ctx context.Context) (bool, error) {
	ok, err := l.client.Do(ctx, "SETNX", l.key, "locked").Bool()
	if err != nil || !ok {
		return false, err
	}
	return true, l.client.PExpire(ctx, l.key, l.ttl).Err()
}

func (l *setnxThenExpire) unlock(ctx context.Context) error { return l.client.Del(ctx, l.key).Err() }

// setnxGetset keeps the time at which the lock expires as its value, by the clock of the client.
type setnxGetset struct {
	client *redis.Client
	key    string
	ttl    time.Duration
	now    func() time.Time

	mine string
}

func (l *setnxGetset) lock(ctx context.Context) (bool, error) {
	now := l.now().UnixMicro()
	l.mine = strconv.FormatInt(now+l.ttl.Microseconds(), 10)
	ok, err := l.client.Do(ctx, "SETNX", l.key, l.mine).Bool()
	if err != nil || ok {
		return ok, err
	}
	found, err := l.client.Get(ctx, l.key).Result()
	if err != nil {
		return false, err
	}
	if expires, _ := strconv.ParseInt(found, 10, 64); expires > now {
		return false, nil
	}
	old, err := l.client.Do(ctx, "GETSET", l.key, l.mine).Text()
	return err == nil && old == found, err // otherwise another client was faster
}

func (l *setnxGetset) unlock(ctx context.Context) error {
	found, err := l.client.Get(ctx, l.key).Result()
	if err != nil || found != l.mine { // it expired, and another client has it
		return err
	}
	return l.client.Del(ctx, l.key).Err()
}

// setnxInScript makes the two commands of setnxThenExpire one.
type setnxInScript struct {
	client *redis.Client
	key    string
	ttl    time.Duration
}

var setnxScript = redis.NewScript(`
	if redis.call('SETNX', KEYS[1], 'locked') == 1 then
		redis.call('PEXPIRE', KEYS[1], ARGV[1])
		return 1
	end
	return 0`)

func (l *setnxInScript) lock(ctx context.Context) (bool, error) {
	return setnxScript.Run(ctx, l.client, []string{l.key}, l.ttl.Milliseconds()).Bool()
}

func (l *setnxInScript) unlock(ctx context.Context) error { return l.client.Del(ctx, l.key).Err() }

// setNXEX does the same with the command that Redis has for it.
type setNXEX struct {
	client *redis.Client
	key    string
	ttl    time.Duration
}

func (l *setNXEX) lock(ctx context.Context) (bool, error) {
	return acquire(ctx, l.client, l.key, "locked", l.ttl)
}

func (l *setNXEX) unlock(ctx context.Context) error { return l.client.Del(ctx, l.key).Err() }

// acquire sets a key that does not exist, and its expiry.
func acquire(ctx context.Context, client *redis.Client, key, value string, ttl time.Duration) (bool, error) {
	err := client.Do(ctx, "SET", key, value, "NX", "PX", ttl.Milliseconds()).Err()
	if errors.Is(err, redis.Nil) {
		return false, nil
	}
	return err == nil, err
}

// getThenDel checks by a random value that the lock is its own, before it deletes it.
type getThenDel struct {
	client *redis.Client
	key    string
	ttl    time.Duration

	mine string
}

func (l *getThenDel) lock(ctx context.Context) (bool, error) {
	l.mine = rand.Text()
	return acquire(ctx, l.client, l.key, l.mine, l.ttl)
}

func (l *getThenDel) unlock(ctx context.Context) error {
	found, err := l.client.Get(ctx, l.key).Result()
	if err != nil || found != l.mine {
		return err
	}
	return l.client.Del(ctx, l.key).Err()
}

// watchMulti deletes in a transaction that fails if the value has changed.
type watchMulti struct {
	client *redis.Client
	key    string
	ttl    time.Duration
	poll   time.Duration

	mine string
}

func (l *watchMulti) lock(ctx context.Context) (bool, error) {
	l.mine = rand.Text()
	return acquire(ctx, l.client, l.key, l.mine, l.ttl)
}

// await locks as soon as it can, until ctx ends.
func (l *watchMulti) await(ctx context.Context) error {
	tick := time.NewTicker(l.poll)
	defer tick.Stop()
	for {
		if ok, err := l.lock(ctx); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (l *watchMulti) unlock(ctx context.Context) error {
	err := l.client.Watch(ctx, func(tx *redis.Tx) error {
		found, err := tx.Get(ctx, l.key).Result()
		if err != nil || found != l.mine {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Del(ctx, l.key)
			return nil
		})
		return err
	}, l.key)
	if errors.Is(err, redis.TxFailedErr) || errors.Is(err, redis.Nil) { // another client has it, or it is free
		return nil
	}
	return err
}

// compareAndDelete deletes in a script. It is the lock of the Redis documentation.
type compareAndDelete struct {
	client *redis.Client
	key    string
	ttl    time.Duration

	mine string
}

var deleteScript = redis.NewScript(`
	if redis.call('GET', KEYS[1]) == ARGV[1] then
		return redis.call('DEL', KEYS[1])
	end
	return 0`)

func (l *compareAndDelete) lock(ctx context.Context) (bool, error) {
	l.mine = rand.Text()
	return acquire(ctx, l.client, l.key, l.mine, l.ttl)
}

func (l *compareAndDelete) unlock(ctx context.Context) error {
	return deleteScript.Run(ctx, l.client, []string{l.key}, l.mine).Err()
}

// watchdog extends its lock for as long as it is held.
type watchdog struct {
	compareAndDelete

	stop, stopped chan struct{}
}

var extendScript = redis.NewScript(`
	if redis.call('GET', KEYS[1]) == ARGV[1] then
		return redis.call('PEXPIRE', KEYS[1], ARGV[2])
	end
	return 0`)

func (l *watchdog) lock(ctx context.Context) (bool, error) {
	ok, err := l.compareAndDelete.lock(ctx)
	if err != nil || !ok {
		return false, err
	}
	l.stop, l.stopped = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(l.stopped)
		tick := time.NewTicker(l.ttl / 3)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = extendScript.Run(ctx, l.client, []string{l.key}, l.mine, l.ttl.Milliseconds()).Err()
			case <-l.stop:
				return
			}
		}
	}()
	return true, nil
}

func (l *watchdog) unlock(ctx context.Context) error {
	close(l.stop)
	<-l.stopped
	return l.compareAndDelete.unlock(ctx)
}

// redlock locks on a majority of several servers.
type redlock struct {
	clients []*redis.Client
	key     string
	ttl     time.Duration

	mine string
}

func (l *redlock) lock(ctx context.Context) (bool, error) {
	l.mine = rand.Text()
	start := time.Now()
	got := 0
	for _, client := range l.clients {
		if ok, _ := acquire(ctx, client, l.key, l.mine, l.ttl); ok { // or it is down: others are up
			got++
		}
	}
	drift := l.ttl/100 + 2*time.Millisecond
	if got > len(l.clients)/2 && time.Since(start) < l.ttl-drift {
		return true, nil
	}
	l.unlock(ctx)
	return false, ctx.Err()
}

func (l *redlock) unlock(ctx context.Context) {
	for _, client := range l.clients {
		_ = deleteScript.Run(ctx, client, []string{l.key}, l.mine).Err() // it may be down: its key expires
	}
}
