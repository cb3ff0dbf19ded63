package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestAnOutageCostsLittleAndEnds(t *testing.T) {
	server := redistest.Start(t)
	log := new(logbook)
	s := newStore(t, server.Client(), hasty, log.option())
	l := newLimiter(t, s)

	under, done := context.WithCancel(ctx())
	var load sync.WaitGroup
	defer load.Wait()
	defer done()
	for range 4 {
		load.Go(func() {
			for under.Err() == nil {
				_, err := l.AllowN(under, "k", 0)
				if err != nil { // or it would spin
					<-time.After(time.Millisecond)
				}
			}
		})
	}
	if _, err := l.Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	before := goroutines()
	server.Stop()
	eventually(t, 3*time.Second, "the breaker opens", func() bool { return log.has(tripped) })

	took := make([]time.Duration, 200)
	most := 0
	for i := range took {
		sent := time.Now()
		_, err := l.Allow(ctx(), "k")
		took[i] = time.Since(sent)
		wantUnavailable(t, err, false)
		most = max(most, goroutines())
	}
	slices.Sort(took)
	if p90 := took[180]; p90 > 5*time.Millisecond {
		t.Errorf("nine calls in ten took up to %v, with the server down", p90)
	}
	if most > before+30 {
		t.Errorf("%d goroutines more than before", most-before)
	}

	server.Restart()
	eventually(t, 3*time.Second, "it works again", func() bool {
		_, err := l.Allow(ctx(), "k")
		return err == nil
	})
}

func TestCloseDuringAnOutage(t *testing.T) {
	// There is no reply, and the client would wait for one for a minute.
	_, proxy, client, s := behindProxy(t, time.Minute, redisstore.WithTimeout(50*time.Millisecond))
	l := newLimiter(t, s)
	if _, err := newLimiter(t, newStore(t, client)).Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	base := goroutines()
	proxy.BlackHole()
	eventually(t, 3*time.Second, "the breaker opens", func() bool {
		sent := time.Now()
		_, err := l.Allow(ctx(), "k")
		return err != nil && time.Since(sent) < 40*time.Millisecond
	})
	pinged := func() int { return proxy.Seen("ping") + proxy.Seen("hello") }
	before := pinged()
	eventually(t, 3*time.Second, "the probe waits for a reply", func() bool { return pinged() > before })
	sent := time.Now()
	_ = s.Close()
	if took := time.Since(sent); took > slack {
		t.Errorf("Close took %v", took)
	}
	if _, err := l.Allow(ctx(), "k"); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	_ = client.Close()
	eventually(t, 3*time.Second, "the goroutines end", func() bool { return goroutines() <= base })
}

// A call that waits for its next attempt when the store is closed makes none, and ends long before
// its timeout.
func TestCloseEndsRetries(t *testing.T) {
	t.Parallel()
	client := dial(t, redistest.Start(t).Addr(), time.Minute)
	var attempts atomic.Int32
	client.AddHook(processHook(func(redis.Cmder) { attempts.Add(1) }))
	s := newStore(t, client, redisstore.WithTimeout(time.Minute))
	_ = client.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := newOp("closed").abandon(s)
		ended <- err
	}()
	eventually(t, 10*time.Second, "the call is repeated", func() bool { return attempts.Load() > 2 })
	_ = s.Close()
	select {
	case err := <-ended:
		wantUnavailable(t, err, false)
	case <-time.After(30 * time.Second):
		t.Error("the call is repeated on a closed store")
	}
}

func TestFinishingCallsPassAnOpenBreaker(t *testing.T) {
	testpace.Parallel(t)
	log := new(logbook)
	server, proxy, _, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(5*time.Second), log.option())
	direct := newStore(t, server.Client())
	l := newLimiter(t, s)
	settled, renewed, abandoned, marked := newOp("settled"), newOp("renewed"), newOp("abandoned"), newOp("marked")
	for _, o := range []op{settled, renewed, abandoned, marked} {
		o.started(t, direct)
	}
	proxy.LoseReplies("evalsha", -1, redistest.Cut)
	proxy.LoseReplies("eval", -1, redistest.Cut) // or the probe would close the breaker
	eventually(t, 5*time.Second, "the breaker opens", func() bool {
		_, err := l.AllowN(ctx(), "k", 0)
		return err != nil && log.has(tripped)
	})
	for name, step := range map[string]func() error{
		"settle":  func() error { _, err := settled.settle(s, "kept"); return err },
		"renew":   func() error { _, err := renewed.renew(s); return err },
		"abandon": func() error { _, err := abandoned.abandon(s); return err },
		"mark":    func() error { _, err := marked.mark(s); return err },
	} {
		before := proxy.Seen("evalsha")
		if _, err := l.Allow(ctx(), "k"); err == nil {
			t.Fatal("a charge passed an open breaker")
		}
		if proxy.Seen("evalsha") != before {
			t.Fatal("a charge was sent through an open breaker")
		}
		wantUnavailable(t, step(), true)
		if proxy.Seen("evalsha") == before {
			t.Errorf("%s was not tried", name)
		}
	}
	if reply, err := settled.by("other").begin(direct); err != nil || string(reply.Data) != "kept" {
		t.Errorf("got %+v, %v; want what was settled with the breaker open", reply, err)
	}
	abandoned.by("other").started(t, direct)
}

func TestCanceledCallsDoNotTripTheBreaker(t *testing.T) {
	testpace.Parallel(t)
	log := new(logbook)
	_, proxy, _, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(5*time.Second), log.option())
	l := newLimiter(t, s)
	if _, err := l.Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	proxy.Delay(50 * time.Millisecond) // the server is slow, not down
	for sent, tries := 0, 0; sent < 20 && tries < 1000; tries++ {
		short, cancel := context.WithTimeout(ctx(), 5*time.Millisecond)
		_, err := l.Allow(short, "k")
		cancel()
		switch {
		case errors.Is(err, store.ErrUnavailable):
			sent++
		case !errors.Is(err, context.DeadlineExceeded): // on a busy machine it is over before anything is sent
			t.Errorf("got %v", err)
		}
	}
	eventually(t, 3*time.Second, "a call without a deadline succeeds", func() bool {
		_, err := l.Allow(ctx(), "k")
		return err == nil
	})
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
}

// If every caller's deadline is before the store's, the client's timeouts open the breaker.
func TestShortDeadlinesOpenTheBreaker(t *testing.T) {
	testpace.Parallel(t)
	log := new(logbook)
	_, proxy, _, s := behindProxy(t, 200*time.Millisecond, redisstore.WithTimeout(5*time.Second), log.option())
	l := newLimiter(t, s)
	proxy.Delay(20 * time.Millisecond) // so that several connections are opened
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := l.Allow(ctx(), "k"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	proxy.BlackHole()
	eventually(t, 5*time.Second, "the breaker opens", func() bool {
		short, cancel := context.WithTimeout(ctx(), 10*time.Millisecond)
		defer cancel()
		_, _ = l.Allow(short, "k")
		return log.has(tripped)
	})
	proxy.Mend()
	eventually(t, 3*time.Second, "it works again", func() bool {
		_, err := l.Allow(ctx(), "k")
		return err == nil
	})
}

// More concurrent calls than connections do not open the breaker, though most get no connection in
// time.
func TestManyCallsDoNotTripTheBreaker(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	log := new(logbook)
	redisClient := pooled(t, proxy.Addr(), 5*time.Second, 4)
	warm(t, proxy, redisClient)
	s := newStore(t, redisClient, redisstore.WithTimeout(1500*time.Millisecond), log.option())
	c := newClaim("first", "holder")
	c.gets(t, s, store.Granted)
	proxy.Delay(250 * time.Millisecond)
	var served, failed atomic.Int64
	var wg sync.WaitGroup
	for i := range 8000 {
		wg.Go(func() {
			if _, err := newClaim(fmt.Sprint("k", i), "holder").acquire(s); err != nil {
				failed.Add(1)
			} else {
				served.Add(1)
			}
		})
	}
	wg.Wait()
	if served.Load() == 0 || failed.Load() < 500 {
		t.Errorf("%d were served and %d failed: the test does not test what it says", served.Load(), failed.Load())
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	c.ends(t, s, true)
}

// The breaker opens if the server never replies, though no request was sent.
func TestASilentServerOpensTheBreaker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	log := new(logbook)
	s := newStore(t, pooled(t, proxy.Addr(), 5*time.Second, 4), redisstore.WithTimeout(50*time.Millisecond), log.option())
	proxy.BlackHole()
	eventually(t, 10*time.Second, "the breaker opens", func() bool {
		_, _ = newClaim("k", "holder").acquire(s)
		return log.has(tripped)
	})
	proxy.Mend()
	eventually(t, 5*time.Second, "it works again", func() bool {
		_, err := newClaim("k", "holder").acquire(s)
		return err == nil
	})
}

// pooled returns a client with a pool of that size, which is closed when the test ends.
func pooled(t testing.TB, addr string, readTimeout time.Duration, poolSize int) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: addr, ReadTimeout: readTimeout, PoolTimeout: time.Minute, PoolSize: poolSize, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestAKeyOfAnotherTypeFailsItsCallersOnly(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	log := new(logbook)
	s := newStore(t, server.Client(), log.option())
	l := newLimiter(t, s)
	if _, err := l.Allow(ctx(), "odd"); err != nil {
		t.Fatal(err)
	}
	spoil := func() {
		key := onlyKey(t, direct)
		if err := errors.Join(direct.Del(ctx(), key).Err(), direct.HSet(ctx(), key, "f", "v").Err()); err != nil {
			t.Fatal(err)
		}
	}
	spoil()
	for range 10 { // twice what trips the breaker
		_, err := l.Allow(ctx(), "odd")
		wantUnavailable(t, err, false)
	}
	if _, err := l.Allow(ctx(), "even"); err != nil {
		t.Errorf("another key: %v", err)
	}

	direct.FlushAll(ctx())
	odd, even := newOp("odd"), newOp("even")
	odd.started(t, s)
	spoil()
	for range 10 {
		_, err := odd.begin(s)
		wantUnavailable(t, err, false)
	}
	even.started(t, s)
	// One such record must not keep the others of its batch from being renewed.
	held, err := s.RenewOperations(ctx(), []store.RenewRequest{odd.renewal(), even.renewal()})
	if err != nil || len(held) != 2 || held[0] || !held[1] {
		t.Errorf("renewed %v, %v; want all but the odd one", held, err)
	}
	// What fails has changed nothing.
	_, err = odd.abandon(s)
	wantUnavailable(t, err, false)
	if n, err := direct.Exists(ctx(), "lk:g:{"+odd.id+"}x::"+odd.owner).Result(); n != 0 || err != nil {
		t.Errorf("a failed abandon left a mark: %d, %v", n, err)
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
}

// An ACL may forbid PING; the refusal still proves that the server replies.
func TestTheBreakerClosesWherePingIsForbidden(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--user", "app", "on", ">secret", "~*", "&*", "+@all", "-ping")
	proxy := redistest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{
		ContextTimeoutEnabled: true,
		Addr:                  proxy.Addr(), Username: "app", Password: "secret", ReadTimeout: 100 * time.Millisecond,
	})
	t.Cleanup(func() { _ = client.Close() })
	eventually(t, 5*time.Second, "PING is forbidden", func() bool { return redis.HasErrorPrefix(client.Ping(ctx()).Err(), "NOPERM") })
	log := new(logbook)
	s := newStore(t, client, hasty, log.option())
	l := newLimiter(t, s)
	proxy.BlackHole()
	eventually(t, 5*time.Second, "the breaker opens", func() bool {
		_, _ = l.Allow(ctx(), "k")
		return log.has(tripped)
	})
	proxy.Mend()
	eventually(t, 3*time.Second, "it works again", func() bool {
		_, err := l.Allow(ctx(), "k")
		return err == nil
	})
}
