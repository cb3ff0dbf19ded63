package redisstore_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Every key of a semaphore expires, none before the holds in it, and nothing is left after the last
// release.
func TestKeysOfPermitsExpire(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	client, hook := server.Client(), new(scriptKeys)
	client.AddHook(hook)
	direct := server.Client()
	s := newStore(t, client, redisstore.WithPrefix("shop"), redisstore.WithSecret([]byte("hidden")))
	check := func(step string, number int, least time.Duration) {
		t.Helper()
		keys := keysOf(t, direct, "*")
		for _, key := range keys {
			if ttl := direct.PTTL(ctx(), key).Val(); ttl < least || ttl > 2*time.Hour+2*time.Minute {
				t.Errorf("%s: %s lives for %v", step, key, ttl)
			}
			if !strings.HasPrefix(key, "shop:e:{") && !strings.HasPrefix(key, "shop:c:{") {
				t.Errorf("%s: %s is not a semaphore's", step, key)
			}
		}
		if len(keys) != number {
			t.Errorf("%s: keys %q, want %d", step, keys, number)
		}
	}
	light, heavy := newPermit("SECRET", "light", 1, 4), newPermit("SECRET", "heavy", 3, 4)
	light.gets(t, s, store.Granted)
	check("one hold", 1, 29*time.Second)
	heavy.gets(t, s, store.Granted)
	check("two holds", 3, 29*time.Second)
	w := newPermit("SECRET", "next", 4, 4).waitsIn(t, s)
	check("a waiter", 4, 29*time.Second)
	for _, c := range []claim{light.ttl(2 * time.Hour), heavy.ttl(2 * time.Hour)} {
		held, err := c.renew(s)
		wantOwned(t, "renew", held, err)
	}
	check("renewed", 4, 2*time.Hour-time.Second)
	if strings.Contains(dump(t, direct), "SECRET") {
		t.Error("the server has the text of a key")
	}
	for state, err := range s.ListLeases(ctx(), light.Name) {
		if err != nil || len(state.Key) != 22 || state.InUse != 4 || state.Waiting != 1 || len(state.Holders) != 2 {
			t.Errorf("listed %+v, %v", state, err)
		}
	}
	light.ends(t, s, true)
	heavy.ends(t, s, true)
	w.granted(t, 5*time.Second)
	w.ends(t, s, true)
	latch := store.LatchRequest{Name: "batch", Count: 2, TTL: time.Minute}
	_, err := s.CountDownLatch(ctx(), latch, "SECRET")
	must(t, err)
	check("latch", 1, 59*time.Second)
	hook.mu.Lock()
	defer hook.mu.Unlock()
	for _, keys := range hook.calls {
		if tag := hashTag(keys[0]); tag == "" || slices.ContainsFunc(keys, func(k string) bool { return hashTag(k) != tag }) {
			t.Errorf("keys of one script call are in several slots: %q", keys)
		}
	}
}

// busySemaphore returns two holds and a waiter of a semaphore.
func busySemaphore(t *testing.T, s *redisstore.Store, key string) (light, heavy, waiter claim) {
	t.Helper()
	light, heavy, waiter = newPermit(key, key+"light", 1, 3), newPermit(key, key+"heavy", 2, 3), newPermit(key, key+"waiter", 3, 3).queued()
	light.gets(t, s, store.Granted)
	heavy.gets(t, s, store.Granted)
	waiter.gets(t, s, store.Queued)
	return light, heavy, waiter
}

func TestASemaphoresKeysOfAnotherTypeAreLeftAlone(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	for _, suffix := range []string{":sjobs", "o", "i", "p"} {
		t.Run(suffix, func(t *testing.T) {
			must(t, direct.FlushAll(ctx()).Err())
			s := newStore(t, direct)
			bad, _, _ := busySemaphore(t, s, "bad")
			key := keysOf(t, direct, "*}"+suffix)[0]
			good, _, _ := busySemaphore(t, s, "good")
			must(t, direct.Del(ctx(), key).Err())
			must(t, direct.SAdd(ctx(), key, "member").Err())
			before := dump(t, direct)
			_, err := newPermit("bad", "other", 1, 1).queued().acquire(s)
			wantUnavailable(t, err, false)
			_, err = bad.release(s)
			wantUnavailable(t, err, false)
			if after := dump(t, direct); after != before {
				t.Errorf("an error changed something: %q, then %q", before, after)
			}
			if held, _ := s.RenewLeases(ctx(), []store.LeaseRef{bad.ref(), good.ref()}); len(held) != 2 || held[0] || !held[1] {
				t.Errorf("renewed %v; want the good one", held)
			}
			for _, err := range s.ListLeases(ctx(), good.Name) {
				if err != nil {
					t.Errorf("list: %v", err)
				}
			}
			good.ends(t, s, true)
		})
	}
}

// If a key of a semaphore is lost, its state is lost, and what is left of it is removed, or expires.
func TestLostKeysOfASemaphore(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	for _, suffix := range []string{":sjobs", "o", "i", "p"} {
		for name, step := range map[string]func(light, waiter claim) error{
			"try": func(light, _ claim) error {
				_, err := newPermit("k", "next", 3, 3).acquire(s)
				return err
			},
			"queue": func(light, waiter claim) error {
				_, err := waiter.acquire(s)
				return err
			},
			"renew":    func(light, _ claim) error { _, err := light.renew(s); return err },
			"release":  func(light, _ claim) error { _, err := light.release(s); return err },
			"withdraw": func(_, waiter claim) error { _, err := waiter.release(s); return err },
			"reduce":   func(light, _ claim) error { _, err := s.DowngradeLease(ctx(), light.ref(), 1); return err },
			"revoke": func(light, _ claim) error {
				_, err := s.RevokeLease(ctx(), light.Name, "k", light.fence.Load())
				return err
			},
			"inspect": func(light, _ claim) error { _, err := s.InspectLease(ctx(), light.Name, "k"); return err },
		} {
			t.Run(suffix+" "+name, func(t *testing.T) {
				must(t, direct.FlushAll(ctx()).Err())
				light, _, waiter := busySemaphore(t, s, "k")
				must(t, direct.Del(ctx(), keysOf(t, direct, "*}"+suffix)...).Err())
				must(t, step(light, waiter))
				if keys := lasting(t, direct); len(keys) > 0 {
					t.Errorf("%q do not expire", keys)
				}
				for _, c := range []claim{newPermit("k", "next", 3, 3), waiter} {
					_, err := c.release(s)
					must(t, err)
				}
				whole := newPermit("k", "whole", 3, 3)
				whole.gets(t, s, store.Granted) // nothing is in use any more
				whole.ends(t, s, true)
				if keys := lasting(t, direct); len(keys) > 0 {
					t.Errorf("%q do not expire", keys)
				}
			})
		}
	}
}

// A full server grants no new permits, and renews and releases its own. Waiters of before
// are granted, and wait no longer if they withdraw.
func TestPermitsWhenMemoryIsFull(t *testing.T) {
	testpace.Parallel(t)
	eachForm(t, permitsWhenMemoryIsFull)
}

func permitsWhenMemoryIsFull(t *testing.T, server *redistest.Server, client *redis.Client) {
	direct := server.Client()
	log := new(logbook)
	s := newStore(t, client, log.option())
	one, two := newPermit("k", "one", 1, 2), newPermit("k", "two", 1, 2)
	one.gets(t, s, store.Granted)
	two.gets(t, s, store.Granted)
	w := newPermit("k", "waiter", 1, 2).waitsIn(t, s)
	leaves := newPermit("k", "leaves", 2, 2).queued()
	leaves.gets(t, s, store.Queued)
	configure(t, direct, "maxmemory", "1")
	for range 10 { // twice what trips the breaker
		newPermit("k", "new", 1, 9).gets(t, s, store.Taken) // others wait
		for _, weight := range []int{1, 2} {
			_, err := newPermit("new", "new", weight, 9).acquire(s)
			wantUnavailable(t, err, false)
		}
		_, err := newPermit("k", "later", 1, 9).queued().acquire(s)
		wantUnavailable(t, err, false)
	}
	<-time.After(1500 * time.Millisecond) // a heartbeat
	held, err := one.renew(s)
	wantOwned(t, "renew", held, err)
	two.ends(t, s, true)
	w.granted(t, 5*time.Second)
	held, err = w.renew(s)
	wantOwned(t, "renew", held, err)
	leaves.ends(t, s, false)
	w.ends(t, s, true)
	one.ends(t, s, true)
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	if keys := direct.Keys(ctx(), "*").Val(); len(keys) > 0 {
		t.Errorf("%q are left", keys)
	}
}
