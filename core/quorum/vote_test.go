package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func TestMembers(t *testing.T) {
	a, b, c := memstore.New(), memstore.New(), memstore.New()
	for name, members := range map[string][]quorum.Member{
		"too few": {a, b}, "nil": {a, nil, c}, "nil pointer": {a, b, (*memstore.Store)(nil)}, "twice": {a, b, c, a}, "none": {},
	} {
		if q, err := quorum.New(members...); err == nil || q != nil {
			t.Errorf("%s: Quorum returned %v, %v", name, q, err)
		}
	}
	if _, err := quorum.New(a, b, c); err != nil {
		t.Error(err)
	}
}

func TestMajority(t *testing.T) {
	for _, tt := range []struct {
		members, taken, dead int
		want                 store.AcquireOutcome
		fails                bool
	}{
		{3, 0, 0, store.Granted, false},
		{3, 1, 0, store.Granted, false},
		{3, 0, 1, store.Granted, false},
		{3, 2, 0, store.Taken, false},
		{3, 3, 0, store.Taken, false},
		{3, 1, 1, store.Taken, false},
		{3, 2, 1, store.Taken, false},
		{3, 0, 2, 0, true},
		{3, 1, 2, 0, true},
		{3, 0, 3, 0, true},
		{4, 1, 0, store.Granted, false},
		{4, 0, 1, store.Granted, false},
		{4, 2, 0, store.Taken, false},
		{4, 2, 2, store.Taken, false},
		{4, 1, 1, store.Taken, false},
		{4, 0, 2, 0, true},
		{5, 2, 0, store.Granted, false},
		{5, 1, 1, store.Granted, false},
		{5, 0, 2, store.Granted, false},
		{5, 3, 0, store.Taken, false},
		{5, 3, 2, store.Taken, false},
		{5, 1, 2, store.Taken, false},
		{5, 2, 3, 0, true},
		{5, 0, 3, 0, true},
	} {
		for kind, dead := range map[string]fault{"down": {down: true}, "hung": {hung: true}, "lost": {lost: true}} {
			t.Run(fmt.Sprintf("%d members, %d taken, %d %s", tt.members, tt.taken, tt.dead, kind), func(t *testing.T) {
				inQuorum(t, tt.members, func(t *testing.T, q *quorum.Store, peers []*peer) {
					const ttl = 10 * time.Second
					for i := range tt.taken {
						peers[i].seize(t, "k", ttl)
					}
					for i := range tt.dead {
						peers[tt.taken+i].fail(dead)
					}
					began := time.Now()
					reply, err := acquire(t.Context(), q, request("k", "me", ttl))
					if took := time.Since(began); took > 400*time.Millisecond {
						t.Errorf("it took %v", took)
					}
					switch {
					case tt.fails:
						if !errors.Is(err, store.ErrUnavailable) {
							t.Fatalf("got %+v, %v; want an outage", reply, err)
						}
						if errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("%v is an error of the caller's context", err)
						}
					case err != nil || reply.Outcome != tt.want:
						t.Fatalf("got %+v, %v; want outcome %v", reply, err, tt.want)
					case reply.Outcome == store.Granted && (reply.Fence == 0 || reply.Fence != reply.LastFence || !reply.Sent.Equal(began)):
						t.Errorf("got the grant %+v at %v", reply.Grant, began)
					case reply.Outcome == store.Taken && (reply.Holder != "a stranger" || reply.Remaining <= 0 || reply.Fence != 0):
						t.Errorf("got %+v", reply)
					}
					if tt.fails || reply.Outcome != store.Granted {
						for _, p := range peers {
							p.mend()
						}
						time.Sleep(2 * time.Second)
						if n := holders(t, peers, "k"); n != tt.taken {
							t.Errorf("%d members are held, want the stranger's %d", n, tt.taken)
						}
					}
				})
			})
		}
	}
}

// Two callers that split the vote release their votes, and one of them gets the lock soon after.
func TestSplitVote(t *testing.T) {
	inQuorum(t, 4, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 30 * time.Second
		for _, p := range peers[:2] {
			p.seize(t, "k", time.Second)
		}
		reply, err := acquire(t.Context(), q, request("k", "me", ttl))
		if err != nil || reply.Outcome != store.Taken {
			t.Fatalf("got %+v, %v", reply, err)
		}
		synctest.Wait()
		if n := holders(t, peers, "k"); n != 2 {
			t.Fatalf("%d members are held, want the other's 2", n)
		}
		req := request("k", "waits", ttl)
		req.Queue = true
		if reply, err := acquire(t.Context(), q, req); err != nil || reply.Outcome != store.Queued {
			t.Fatalf("got %+v, %v", reply, err)
		}
		began := time.Now()
		if _, err := awaitLease(t.Context(), q, req); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > 1300*time.Millisecond {
			t.Errorf("waited %v for a lease of a second", waited)
		}
		if held, err := verify(t.Context(), q, req2hold(req)); err != nil || !held {
			t.Errorf("VerifyLease: %v, %v", held, err)
		}
		if held, err := release(t.Context(), q, req2hold(req)); err != nil || !held {
			t.Errorf("ReleaseLeases: %v, %v", held, err)
		}
		again := req2hold(req)
		again.Repeated = true
		if outcomes, err := q.ReleaseLeases(t.Context(), []store.LeaseRef{again}); err != nil || outcomes[0] != store.ReleaseUnknown {
			t.Errorf("ReleaseLeases, sent twice: %v, %v", outcomes, err)
		}
		synctest.Wait()
		if n := holders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held after the release", n)
		}
	})
}

// Grants of members after the attempt has failed are released.
func TestLateGrant(t *testing.T) {
	inQuorum(t, 5, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = time.Minute
		for _, p := range peers[:3] {
			p.seize(t, "k", ttl)
		}
		peers[3].fail(fault{before: time.Second}, "acquire")
		peers[4].fail(fault{after: time.Second}, "acquire")
		if reply, err := acquire(t.Context(), q, request("k", "me", ttl)); err != nil || reply.Outcome != store.Taken {
			t.Fatalf("got %+v, %v", reply, err)
		}
		time.Sleep(2 * time.Second)
		if n := holders(t, peers, "k"); n != 3 {
			t.Errorf("%d members are held, want the stranger's 3", n)
		}
	})
}

// A late grant of a member is part of the lease if the attempt has not failed.
func TestLateVote(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = time.Minute
		peers[2].fail(fault{before: 100 * time.Millisecond}, "acquire")
		ctx, cancel := context.WithCancel(t.Context())
		reply, err := acquire(ctx, q, request("k", "me", ttl))
		cancel()
		if err != nil || reply.Outcome != store.Granted || time.Since(reply.Sent) != 0 {
			t.Fatalf("got %+v, %v", reply, err)
		}
		time.Sleep(time.Second)
		if n := holders(t, peers, "k"); n != 3 {
			t.Errorf("%d members are held, want all", n)
		}
		if n := peers[2].count("raise"); n != 1 {
			t.Errorf("the fence was raised %d times on the late member", n)
		}
	})
}

// A majority that replies when the lease is almost expired grants nothing.
func TestTooSlow(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 10 * time.Millisecond
		for _, p := range peers {
			p.fail(fault{before: 4 * time.Millisecond}, "acquire", "raise")
		}
		_, err := acquire(t.Context(), q, request("k", "me", ttl))
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "the lease expired") {
			t.Errorf("8 of %v: %v", ttl, err)
		}
		synctest.Wait()
		if n := holders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
		for _, p := range peers {
			p.fail(fault{before: 3 * time.Millisecond}, "acquire", "raise")
		}
		mustAcquire(t, q, "k", "again", ttl)
	})
}

func TestForgetfulMember(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 10 * time.Second
		peers[2].fail(fault{down: true})
		first := newLocker(t, q, "q", lock.WithTTL(ttl), lock.WithoutRenewal())
		lease := mustLock(t, first, "k")
		time.Sleep(time.Second)
		peers[1].restart()
		peers[2].mend()
		restarted := time.Now()

		// Members 1 and 2 are a majority without a holder.
		second := newLocker(t, newQuorum(t, peers), "q", lock.WithTTL(ttl))
		var other *lock.Lease
		for other == nil {
			var err error
			if other, err = second.TryLock(t.Context(), "k"); err != nil && !errors.Is(err, lock.ErrNotAcquired) {
				t.Fatal(err)
			}
			if other == nil {
				time.Sleep(50 * time.Millisecond)
			} else if lease.Context().Err() == nil {
				t.Fatalf("a second holder after %v", time.Since(restarted))
			}
		}
		// Member 0's lease ends a second before member 1 may vote.
		if waited := time.Since(restarted); waited < ttl-time.Second || waited > ttl {
			t.Errorf("granted after %v", waited)
		}
		if other.Fence().Number <= lease.Fence().Number {
			t.Errorf("the fence went from %d to %d", lease.Fence().Number, other.Fence().Number)
		}
		mustUnlock(t, other)
		time.Sleep(2 * ttl)
	})
}

// After a restart of all members, no lock is granted for the longest lease.
func TestRestartOfAllMembers(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 10 * time.Second
		q.ExpectTTL(time.Minute)
		q.ExpectTTL(time.Second) // never shrinks
		for _, p := range peers {
			p.restart()
		}
		time.Sleep(time.Minute - time.Second)
		_, err := acquire(t.Context(), q, request("k", "early", ttl))
		if !errors.Is(err, store.ErrUnavailable) || !strings.Contains(err.Error(), "may have lost a lease") {
			t.Fatalf("AcquireLease: %v", err)
		}
		time.Sleep(time.Second)
		mustAcquire(t, q, "k", "me", ttl)

		// An uptime is that at the sending of the request: a member may restart before it replies.
		peers[0].restart()
		peers[1].restart()
		time.Sleep(time.Minute - 50*time.Millisecond)
		for _, p := range peers {
			p.fail(fault{before: 60 * time.Millisecond}, "uptime")
		}
		if _, err := acquire(t.Context(), q, request("other", "slow", ttl)); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("AcquireLease: %v", err)
		}
	})
}

// Fences grow, even if the member with the largest one is in one majority and not in the next.
func TestFences(t *testing.T) {
	inQuorum(t, 5, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 10 * time.Second
		ok(t, peers[0].RaiseFence(t.Context(), "q", "k", 1<<52))
		var last int64
		for i, dead := range [][2]int{{3, 4}, {0, 1}, {1, 2}, {0, 3}, {2, 4}, {0, 1}} {
			for _, d := range dead {
				peers[d].fail(fault{down: true})
			}
			id := fmt.Sprintf("hold-%d", i)
			grant := mustAcquire(t, q, "k", id, ttl)
			if grant.Fence <= last || grant.Fence <= 1<<52 {
				t.Errorf("fence %d after %d", grant.Fence, last)
			}
			last = grant.Fence
			if held, err := release(t.Context(), q, ref("k", id, ttl)); err != nil || !held {
				t.Fatalf("ReleaseLeases: %v, %v", held, err)
			}
			for _, d := range dead {
				peers[d].mend()
			}
			time.Sleep(5 * time.Second) // for retries in the background
		}
	})
}

func TestFenceMustBeWritten(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 10 * time.Second
		peers[0].fail(fault{hung: true}, "raise")
		mustAcquire(t, q, "a", "a", ttl)
		peers[1].fail(fault{down: true}, "raise")
		if reply, err := acquire(t.Context(), q, request("b", "b", ttl)); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("got %+v, %v", reply, err)
		}
		synctest.Wait()
		if n := holders(t, peers, "b"); n != 0 {
			t.Errorf("%d members are held", n)
		}
		time.Sleep(2 * ttl)
	})
}
