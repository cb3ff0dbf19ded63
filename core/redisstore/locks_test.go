package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// A lock and an unlock allocate little, with a context that can be canceled, as those of requests
// can.
func TestAllocationsOfALock(t *testing.T) {
	server := redistest.Start(t)
	client := obedient(t, server.Addr(), 10)
	locker, err := lock.New(newStore(t, client), "jobs")
	must(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	within, cancel := context.WithCancel(ctx())
	defer cancel()
	allocated := testing.AllocsPerRun(500, func() {
		lease, err := locker.Lock(within, "k")
		must(t, err)
		must(t, lease.Unlock(within))
	})
	most := 30.0
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		most = 33 // the race detector has pools forget some
	}
	if allocated > most {
		t.Errorf("%v allocations, want %v at most", allocated, most)
	}
}

func TestLock(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		a, b := newStore(t, client), newStore(t, client)
		one, two := newClaim("k", "one"), newClaim("k", "two")
		first := one.gets(t, a, store.Granted)
		if first.LastFence != first.Fence+15 {
			t.Errorf("fences %d to %d, want 16", first.Fence, first.LastFence)
		}
		if again := one.gets(t, a, store.Granted); again.Fence != first.Fence || again.LastFence != first.LastFence {
			t.Errorf("sent twice: %+v, then %+v", first, again)
		}
		reply := two.gets(t, b, store.Taken)
		if reply.Holder != "one" || reply.Waiting != 0 || reply.Remaining <= 29*time.Second || reply.Remaining > 30*time.Second {
			t.Errorf("taken: %+v", reply)
		}
		for range 2 {
			if reply := two.queued().gets(t, b, store.Queued); reply.Holder != "one" || reply.Waiting != 0 {
				t.Errorf("queued: %+v", reply)
			}
		}
		if reply := newClaim("k", "three").gets(t, b, store.Taken); reply.Waiting != 1 {
			t.Errorf("taken: %+v, want one that waits", reply)
		}
		w := two.await(t, b)
		held, err := one.renew(a)
		wantOwned(t, "renew", held, err)
		w.waits(t)
		for range 2 {
			one.ends(t, a, true)
		}
		second := w.granted(t, 900*time.Millisecond)
		if second.Fence <= first.LastFence {
			t.Errorf("fence %d after %d", second.Fence, first.LastFence)
		}
		one.gets(t, a, store.Withdrawn)
		held, err = b.VerifyLock(ctx(), two.hold())
		wantOwned(t, "verify", held, err)
		two.ends(t, b, true)
		newClaim("k", "four").gets(t, a, store.Granted)
	})
}

func TestSharedLocksArePhaseFair(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		s := newStore(t, client)
		claim := func(id string) claim { return newClaim("k", id) }
		claim("w0").gets(t, s, store.Granted)
		var waits []*wait
		for _, c := range []struct {
			id     string
			shared bool
		}{{"r1", true}, {"r2", true}, {"w1", false}, {"r3", true}} {
			c1 := claim(c.id).queued()
			if c.shared {
				c1 = c1.shared()
			}
			c1.gets(t, s, store.Queued)
			waits = append(waits, c1.await(t, s))
		}
		claim("w0").ends(t, s, true)
		waits[0].granted(t, time.Second)
		waits[1].granted(t, time.Second)
		claim("r4").shared().gets(t, s, store.Taken) // a writer waits
		claim("r1").ends(t, s, true)
		waits[2].waits(t)
		claim("r2").ends(t, s, true)
		waits[2].granted(t, time.Second)
		waits[3].waits(t)
		held, err := s.DowngradeLock(ctx(), claim("w1").hold())
		wantOwned(t, "downgrade", held, err)
		waits[3].granted(t, time.Second)
		claim("r5").shared().gets(t, s, store.Granted)
		claim("w2").gets(t, s, store.Taken)
		state, err := s.InspectLock(ctx(), "jobs", "k")
		if err != nil || len(state.Holders) != 3 || state.Waiting != 0 {
			t.Errorf("inspect: %+v, %v", state, err)
		}
		for _, id := range []string{"w1", "r3", "r5"} {
			claim(id).ends(t, s, true)
		}
		if state, err := s.InspectLock(ctx(), "jobs", "k"); err != nil || len(state.Holders) != 0 || state.Waiting != 0 {
			t.Errorf("inspect: %+v, %v", state, err)
		}
	})
}

func TestAWithdrawnExclusiveRequestAdmitsReaders(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	newClaim("k", "r1").shared().gets(t, s, store.Granted)
	writer, reader := newClaim("k", "w").queued(), newClaim("k", "r2").shared().queued()
	writer.gets(t, s, store.Queued)
	reader.gets(t, s, store.Queued)
	ww, rw := writer.await(t, s), reader.await(t, s)
	rw.waits(t)
	writer.ends(t, s, false)
	rw.granted(t, time.Second)
	<-ww.done
	if !errors.Is(ww.err, store.ErrWithdrawn) {
		t.Errorf("the writer's wait: %v", ww.err)
	}
}

func TestAnExpiredLockIsTakenAfterItsDelay(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	holder := newClaim("k", "holder").ttl(200 * time.Millisecond).delay(200 * time.Millisecond)
	holder.gets(t, s, store.Granted)
	next := newClaim("k", "next").queued()
	next.gets(t, s, store.Queued)
	began := time.Now()
	next.await(t, s).granted(t, time.Second)
	if took := time.Since(began); took < 350*time.Millisecond {
		t.Errorf("granted after %v, before the delay was over", took)
	}
	for range 2 {
		if held, err := holder.renew(s); err != nil || held {
			t.Errorf("renewed after its end: %v, %v", held, err)
		}
	}
	holder.ends(t, s, false)
	held, err := s.VerifyLock(ctx(), next.hold())
	wantOwned(t, "verify", held, err)
}

func TestAnExpiredLockIsNotRenewedThoughItIsFree(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	holder := newClaim("k", "holder").ttl(50 * time.Millisecond).delay(time.Minute)
	holder.gets(t, s, store.Granted)
	eventually(t, time.Second, "the hold expires", func() bool {
		held, err := s.VerifyLock(ctx(), holder.hold())
		return err == nil && !held
	})
	if held, err := holder.renew(s); err != nil || held {
		t.Errorf("renewed: %v, %v", held, err)
	}
	newClaim("k", "next").gets(t, s, store.Taken)
	holder.ends(t, s, false) // which ends the delay, since the holder has finished
	newClaim("k", "next").gets(t, s, store.Granted)
}

func TestForceUnlockAndList(t *testing.T) {
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		a, b := newStore(t, client), newStore(t, client)
		lost := make(chan string, 1)
		t.Cleanup(a.NotifyLost(func(id string) { lost <- id }))
		holder, next := newClaim("*[k]", "holder"), newClaim("*[k]", "next").queued()
		grant := holder.gets(t, a, store.Granted)
		next.gets(t, b, store.Queued)
		w := next.await(t, b)
		other := newClaim("k", "other")
		other.Name = "x}:jobs"
		other.gets(t, a, store.Granted)
		seen := 0
		for state, err := range b.ListLocks(ctx(), "jobs") {
			seen++
			if err != nil || state.Key != "*[k]" || len(state.Holders) != 1 || state.Waiting != 1 ||
				state.Holders[0].Meta != "holder" || state.Holders[0].LastFence != grant.LastFence {
				t.Errorf("listed %+v, %v", state, err)
			}
		}
		if seen != 1 {
			t.Errorf("listed %d locks", seen)
		}
		if done, err := b.ForceUnlock(ctx(), "jobs", "*[k]", grant.LastFence+1); err != nil || done {
			t.Errorf("unlocked by another fence: %v, %v", done, err)
		}
		subscribed(t, client, 2)
		done, err := b.ForceUnlock(ctx(), "jobs", "*[k]", grant.LastFence)
		wantOwned(t, "force", done, err)
		w.granted(t, time.Second)
		select {
		case id := <-lost:
			if id != holder.ID {
				t.Errorf("lost %q", id)
			}
		case <-time.After(time.Second):
			t.Error("the holder was not notified")
		}
		holder.gets(t, a, store.Withdrawn)
		holder.ends(t, a, false)
		if done, err := b.ForceUnlock(ctx(), "jobs", "*[k]", grant.LastFence); err != nil || done {
			t.Errorf("unlocked twice: %v, %v", done, err)
		}
	})
}

// subscribed waits until n stores have subscribed to their inboxes.
func subscribed(t testing.TB, client redis.UniversalClient, n int) {
	t.Helper()
	eventually(t, 5*time.Second, "subscriptions", func() bool {
		return len(client.PubSubChannels(ctx(), "*").Val()) >= n
	})
}

func TestManyWaiters(t *testing.T) {
	client := redistest.Start(t).Client()
	stores := []*redisstore.Store{newStore(t, client), newStore(t, client)}
	first := newClaim("k", "first")
	first.gets(t, stores[0], store.Granted)
	var waits []*wait
	for i := range 64 {
		c := newClaim("k", fmt.Sprint("w", i)).queued()
		c.gets(t, stores[i%2], store.Queued)
		waits = append(waits, c.await(t, stores[i%2]))
	}
	subscribed(t, client, 2)
	began := time.Now()
	first.ends(t, stores[0], true)
	fence := int64(0)
	for i, w := range waits {
		g := w.granted(t, 3*time.Second)
		if g.Fence <= fence {
			t.Errorf("fence %d after %d", g.Fence, fence)
		}
		fence = g.LastFence
		w.ends(t, stores[i%2], true)
	}
	t.Logf("%v for each of 64 in turn", time.Since(began)/64)
}
