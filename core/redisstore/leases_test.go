package redisstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Two stores hand a lock over, each with its own processes' channel.
func TestALockBetweenStores(t *testing.T) {
	testpace.Parallel(t)
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		a, b := newStore(t, client), newStore(t, client)
		one, two := newClaim("k", "one"), newClaim("k", "two")
		first := one.gets(t, a, store.Granted)
		reply := two.gets(t, b, store.Taken)
		if reply.Holder != "one" || reply.Waiting != 0 || reply.Remaining <= 5*time.Second || reply.Remaining > 30*time.Second {
			t.Errorf("taken: %+v", reply)
		}
		w := two.waitsIn(t, b)
		subscribed(t, client, 2)
		held, err := one.renew(a)
		wantOwned(t, "renew", held, err)
		w.waits(t)
		began := time.Now()
		one.ends(t, a, true)
		second := w.granted(t, 5*time.Second)
		if second.Fence <= first.LastFence {
			t.Errorf("fence %d after %d", second.Fence, first.LastFence)
		}
		if second.Sent.After(began) || second.Place == 0 || second.TTL > 2*time.Second != !second.Untaken {
			t.Errorf("granted %+v", second)
		}
		held, err = two.renew(b)
		wantOwned(t, "take up", held, err)
		if state, err := a.InspectLease(ctx(), two.Name, "k"); err != nil || len(state.Holders) != 1 || state.Holders[0].Remaining < 5*time.Second {
			t.Errorf("taken up: %+v, %v", state, err)
		}
		two.ends(t, b, true)
		newClaim("k", "three").gets(t, a, store.Granted)
	})
}

// A pushed grant that its process takes up in no way ends by itself.
func TestAGrantThatIsNotTakenUpRunsOut(t *testing.T) {
	testpace.Parallel(t)
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		s, other := newStore(t, client), newStore(t, client)
		holder, next := newClaim("k", "holder"), newClaim("k", "next")
		holder.gets(t, s, store.Granted)
		w := next.waitsIn(t, other)
		subscribed(t, client, 2)
		holder.ends(t, s, true)
		grant := w.granted(t, 5*time.Second)
		if !grant.Untaken { // its store has not learned of its subscription in time, and asked
			t.Skip("granted by a reply")
		}
		last := newClaim("k", "last").waitsIn(t, s)
		began := time.Now()
		last.granted(t, 5*time.Second)
		if took := time.Since(began); took < time.Second {
			t.Errorf("ended after %v", took)
		}
		if held, err := next.renew(other); held || err != nil {
			t.Errorf("taken up after its end: %v, %v", held, err)
		}
	})
}

func TestAWithdrawnRequestAdmitsReaders(t *testing.T) {
	testpace.Parallel(t)
	client := redistest.Start(t).Client()
	s, other := newStore(t, client), newStore(t, client)
	newClaim("k", "r1").shared().gets(t, s, store.Granted)
	writer, reader := newClaim("k", "w").waitsIn(t, other), newClaim("k", "r2").shared().waitsIn(t, s)
	reader.waits(t)
	writer.ends(t, other, false)
	reader.granted(t, 5*time.Second)
	<-writer.done
	if !errors.Is(writer.err, store.ErrWithdrawn) {
		t.Errorf("the writer's wait: %v", writer.err)
	}
}

func TestARevokedHoldIsReported(t *testing.T) {
	testpace.Parallel(t)
	onBoth(t, func(t *testing.T, client redis.UniversalClient) {
		a, b := newStore(t, client), newStore(t, client)
		lost := make(chan string, 1)
		t.Cleanup(a.NotifyLost(func(id string) { lost <- id }))
		holder := newClaim("*[k]", "holder")
		grant := holder.gets(t, a, store.Granted)
		w := newClaim("*[k]", "next").waitsIn(t, b)
		other := newClaim("k", "other")
		other.Name = store.LockKind + "x}:ljobs" // has the same end
		other.gets(t, a, store.Granted)
		seen := 0
		for state, err := range b.ListLeases(ctx(), holder.Name) {
			seen++
			if err != nil || state.Key != "*[k]" || len(state.Holders) != 1 || state.Waiting != 1 ||
				state.Holders[0].Label != "holder" || state.Holders[0].LastFence != grant.LastFence {
				t.Errorf("listed %+v, %v", state, err)
			}
		}
		if seen != 1 {
			t.Errorf("listed %d locks", seen)
		}
		if done, err := b.RevokeLease(ctx(), holder.Name, "*[k]", grant.LastFence+1); err != nil || done {
			t.Errorf("revoked by another fence: %v, %v", done, err)
		}
		subscribed(t, client, 2)
		done, err := b.RevokeLease(ctx(), holder.Name, "*[k]", grant.LastFence)
		wantOwned(t, "revoke", done, err)
		w.granted(t, 5*time.Second)
		select {
		case id := <-lost:
			if id != holder.ID {
				t.Errorf("lost %q", id)
			}
		case <-time.After(5 * time.Second):
			t.Error("the holder was not notified")
		}
		holder.ends(t, a, false)
		if done, err := b.RevokeLease(ctx(), holder.Name, "*[k]", grant.LastFence); err != nil || done {
			t.Errorf("revoked twice: %v, %v", done, err)
		}
	})
}

func TestManyWaiters(t *testing.T) {
	testpace.Parallel(t)
	client := redistest.Start(t).Client()
	stores := []*redisstore.Store{newStore(t, client), newStore(t, client)}
	first := newClaim("k", "first")
	first.gets(t, stores[0], store.Granted)
	var waits []*wait
	for i := range 64 {
		waits = append(waits, newClaim("k", fmt.Sprint("w", i)).waitsIn(t, stores[i%2]))
	}
	subscribed(t, client, 2)
	began := time.Now()
	first.ends(t, stores[0], true)
	fence := int64(0)
	for i, w := range waits { // in the order of their places
		g := w.granted(t, 5*time.Second)
		if g.Fence <= fence {
			t.Errorf("fence %d after %d", g.Fence, fence)
		}
		if i+1 < len(waits) {
			waits[i+1].waits(t)
		}
		fence = g.LastFence
		w.ends(t, stores[i%2], true)
	}
	t.Logf("%v for each of 64 in turn", time.Since(began)/64)
}
