package redisstore_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

var losses = map[string]redistest.Loss{"cut": redistest.Cut, "silence": redistest.Silence}

func TestLostReplyOfAChargeIsUnconfirmedAndChargedOnce(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	for name, how := range losses {
		for _, command := range []string{"evalsha", "eval"} {
			t.Run(name+" "+command, func(t *testing.T) {
				proxy := redistest.NewProxy(t, server.Addr())
				s := newStore(t, dial(t, proxy.Addr(), 100*time.Millisecond), redisstore.WithTimeout(2*time.Second))
				l := newLimiter(t, s)
				if _, err := l.Allow(ctx(), "first"); err != nil {
					t.Fatal(err)
				}
				if command == "eval" { // the second try of a call whose script is gone
					if err := direct.ScriptFlush(ctx()).Err(); err != nil {
						t.Fatal(err)
					}
				}
				before := proxy.Seen(command)
				proxy.LoseReplies(command, 1, how)
				key := t.Name()
				_, err := l.Allow(ctx(), key)
				wantUnavailable(t, err, true)
				if got := remaining(t, direct, key); got != 99 {
					t.Errorf("%d tokens remain of 100 after one charge", got)
				}
				if sent := proxy.Seen(command) - before; sent != 1 && (command != "eval" || sent != 2) { // a probe is an EVAL
					t.Errorf("sent %d times", sent)
				}
			})
		}
	}
}

func TestLostReplyOfAChargeOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client, proxies := cluster.ProxiedClient()
	direct := cluster.Client()
	l := newLimiter(t, newStore(t, client, redisstore.WithTimeout(2*time.Second)))
	for _, key := range []string{"a", "b", "c", "d"} {
		for _, p := range proxies {
			p.LoseReplies("evalsha", 1, redistest.Cut)
		}
		_, err := l.Allow(ctx(), key)
		wantUnavailable(t, err, true)
		if got := remaining(t, direct, key); got != 99 {
			t.Errorf("%d tokens remain of 100 after one charge", got)
		}
		for _, p := range proxies {
			p.Mend()
		}
	}
	// Steps of a guard are sent again, by the client itself.
	for _, p := range proxies {
		p.LoseReplies("evalsha", 1, redistest.Cut)
	}
	o := newOp("cluster")
	o.started(t, newStore(t, client, redisstore.WithTimeout(2*time.Second)))
}

// The default client dials five times, 100 ms apart, and has not finished at the store's deadline.
func TestARefusedDialIsNotUnconfirmed(t *testing.T) {
	testpace.Parallel(t)
	for name, options := range map[string]redis.Options{
		"default client": {ContextTimeoutEnabled: true},
		"quick client":   {ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1},
	} {
		t.Run(name, func(t *testing.T) {
			options.Addr = unusedAddr(t)
			client := redis.NewClient(&options)
			t.Cleanup(func() { _ = client.Close() })
			s := newStore(t, client, hasty)
			_, err := newLimiter(t, s).Allow(ctx(), "k")
			wantUnavailable(t, err, false)
			_, err = newOp("refused").begin(s)
			wantUnavailable(t, err, false)
			_, err = newOp("refused").settle(s, "")
			wantUnavailable(t, err, false)
			wantUnavailable(t, s.Ping(ctx()), false)
		})
	}
}

// The client sends again by itself; its last error does not describe the earlier attempts.
func TestABeginThatWasSentBeforeTheDialWasRefusedIsUnconfirmed(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	var refused atomic.Bool
	client := redis.NewClient(&redis.Options{
		ContextTimeoutEnabled: true,
		Addr:                  proxy.Addr(), DialerRetries: 1, MinRetryBackoff: time.Millisecond, MaxRetryBackoff: time.Millisecond,
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if refused.Load() {
				return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	newOp("first").started(t, s)
	refused.Store(true)
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	o := newOp("sent")
	_, err := o.begin(s)
	wantUnavailable(t, err, true)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("got %v, want the refused dial: the test does not test what it says", err)
	}
	if reply, err := o.by("other").begin(newStore(t, server.Client())); err != nil || reply.Outcome != store.Busy {
		t.Errorf("got %+v, %v; want the lost attempt in flight", reply, err)
	}
}

func TestLostRepliesOfAGuard(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	for name, how := range losses {
		for _, step := range guardSteps {
			t.Run(name+" "+step.name, func(t *testing.T) {
				proxy := redistest.NewProxy(t, server.Addr())
				s := newStore(t, dial(t, proxy.Addr(), 100*time.Millisecond), redisstore.WithTimeout(3*time.Second))
				o := newOp(name + step.name)
				if step.name != "begin" {
					o.started(t, direct)
				}
				proxy.LoseReplies("evalsha", 1, how)
				owned, err := step.take(o, s)
				wantOwned(t, step.name, owned, err)
				if sent := proxy.Seen("evalsha"); sent != 2 {
					t.Errorf("sent %d times, want a lost one and its repeat", sent)
				}
				step.check(t, o, direct)
			})
		}
	}
}

func TestEveryStepOfAGuardCanBeSentTwice(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, redistest.Start(t).Client())
	for _, step := range guardSteps {
		t.Run(step.name, func(t *testing.T) {
			o := newOp("twice-" + step.name)
			o.started(t, s)
			for range 2 {
				owned, err := step.take(o, s)
				wantOwned(t, step.name, owned, err)
			}
			step.check(t, o, s)
		})
	}
}

// guardSteps are the steps of an attempt, each with a check of its effect.
var guardSteps = []struct {
	name  string
	take  func(op, *redisstore.Store) (bool, error)
	check func(*testing.T, op, *redisstore.Store)
}{
	{"begin", func(o op, s *redisstore.Store) (bool, error) {
		reply, err := o.begin(s)
		return reply.Outcome == store.Started && reply.Number == 1, err
	}, wantBusy},
	{"mark", op.mark, wantBusy},
	{"renew", op.renew, wantBusy},
	{"settle", func(o op, s *redisstore.Store) (bool, error) { return o.settle(s, "kept") },
		func(t *testing.T, o op, s *redisstore.Store) {
			if reply, err := o.by("other").begin(s); err != nil || reply.Outcome != store.Settled || string(reply.Data) != "kept" {
				t.Errorf("got %+v, %v; want the result", reply, err)
			}
		}},
	{"abandon", op.abandon, func(t *testing.T, o op, s *redisstore.Store) {
		if reply, err := o.begin(s); err != nil || reply.Outcome != store.Refused {
			t.Errorf("a begin after its abandon: %+v, %v; want it refused", reply, err)
		}
		o.by("other").started(t, s)
	}},
}

func wantBusy(t *testing.T, o op, s *redisstore.Store) {
	t.Helper()
	if reply, err := o.by("other").begin(s); err != nil || reply.Outcome != store.Busy || reply.Number != 1 {
		t.Errorf("another begin: %+v, %v; want the first attempt in flight", reply, err)
	}
	owned, err := o.renew(s)
	wantOwned(t, "renew", owned, err)
}
