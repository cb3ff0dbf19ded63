package lock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

func quorumRequest(key, id string, ttl time.Duration) lock.AcquireRequest {
	return lock.AcquireRequest{Name: "q", Key: key, ID: id, TTL: ttl, Fences: 16, Holder: "me"}
}

func quorumHold(key, id string, ttl time.Duration) lock.HoldRequest {
	return lock.HoldRequest{Name: "q", Key: key, ID: id, TTL: ttl}
}

func newQuorum(t *testing.T, peers []*quorumPeer) *lock.QuorumStore {
	t.Helper()
	members := make([]lock.QuorumMember, len(peers))
	for i, p := range peers {
		members[i] = p
	}
	q, err := lock.Quorum(members...)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// inQuorum runs a test on fake time with n members that have been up for an hour.
func inQuorum(t *testing.T, n int, test func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(3 * time.Minute) }) // what goes on in the background is over by then
		peers := make([]*quorumPeer, n)
		for i := range peers {
			peers[i] = &quorumPeer{store: memstore.New(), calls: map[string]int{}}
			t.Cleanup(func() { _ = peers[i].store.Close() })
		}
		time.Sleep(time.Hour)
		test(t, newQuorum(t, peers), peers)
	})
}

func quorumHolders(t *testing.T, peers []*quorumPeer, key string) int {
	t.Helper()
	n := 0
	for _, p := range peers {
		if p.has(t, key) {
			n++
		}
	}
	return n
}

func mustAcquire(t *testing.T, s lock.Store, key, id string, ttl time.Duration) lock.Grant {
	t.Helper()
	reply, err := s.AcquireLock(t.Context(), quorumRequest(key, id, ttl))
	if err != nil || reply.Outcome != lock.Granted {
		t.Fatalf("AcquireLock of %s: %+v, %v", id, reply, err)
	}
	return reply.Grant
}

func TestQuorumMembers(t *testing.T) {
	a, b, c := memstore.New(), memstore.New(), memstore.New()
	for name, members := range map[string][]lock.QuorumMember{
		"too few": {a, b}, "nil": {a, nil, c}, "nil pointer": {a, b, (*memstore.Store)(nil)}, "twice": {a, b, c, a}, "none": {},
	} {
		if q, err := lock.Quorum(members...); err == nil || q != nil {
			t.Errorf("%s: Quorum returned %v, %v", name, q, err)
		}
	}
	if _, err := lock.Quorum(a, b, c); err != nil {
		t.Error(err)
	}
}

func TestQuorumMajority(t *testing.T) {
	for _, tt := range []struct {
		members, taken, dead int
		want                 lock.AcquireOutcome
		fails                bool
	}{
		{3, 0, 0, lock.Granted, false},
		{3, 1, 0, lock.Granted, false},
		{3, 0, 1, lock.Granted, false},
		{3, 2, 0, lock.Taken, false},
		{3, 3, 0, lock.Taken, false},
		{3, 1, 1, lock.Taken, false},
		{3, 2, 1, lock.Taken, false},
		{3, 0, 2, 0, true},
		{3, 1, 2, 0, true},
		{3, 0, 3, 0, true},
		{4, 1, 0, lock.Granted, false},
		{4, 0, 1, lock.Granted, false},
		{4, 2, 0, lock.Taken, false},
		{4, 2, 2, lock.Taken, false},
		{4, 1, 1, lock.Taken, false},
		{4, 0, 2, 0, true},
		{5, 2, 0, lock.Granted, false},
		{5, 1, 1, lock.Granted, false},
		{5, 0, 2, lock.Granted, false},
		{5, 3, 0, lock.Taken, false},
		{5, 3, 2, lock.Taken, false},
		{5, 1, 2, lock.Taken, false},
		{5, 2, 3, 0, true},
		{5, 0, 3, 0, true},
	} {
		for kind, dead := range map[string]quorumFault{"down": {down: true}, "hung": {hung: true}, "lost": {lost: true}} {
			t.Run(fmt.Sprintf("%d members, %d taken, %d %s", tt.members, tt.taken, tt.dead, kind), func(t *testing.T) {
				inQuorum(t, tt.members, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
					const ttl = 10 * time.Second
					for i := range tt.taken {
						peers[i].seize(t, "k", ttl)
					}
					for i := range tt.dead {
						peers[tt.taken+i].fail(dead)
					}
					began := time.Now()
					reply, err := q.AcquireLock(t.Context(), quorumRequest("k", "me", ttl))
					if took := time.Since(began); took > 400*time.Millisecond {
						t.Errorf("it took %v", took)
					}
					switch {
					case tt.fails:
						if !errors.Is(err, outage.ErrUnavailable) {
							t.Fatalf("got %+v, %v; want an outage", reply, err)
						}
						if errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("%v is taken for the end of the caller's context", err)
						}
					case err != nil || reply.Outcome != tt.want:
						t.Fatalf("got %+v, %v; want outcome %v", reply, err, tt.want)
					case reply.Outcome == lock.Granted && (reply.Fence == 0 || reply.Fence != reply.LastFence || !reply.Sent.Equal(began)):
						t.Errorf("got the grant %+v at %v", reply.Grant, began)
					case reply.Outcome == lock.Taken && (reply.Holder != "a stranger" || reply.Remaining <= 0 || reply.Fence != 0):
						t.Errorf("got the refusal %+v", reply)
					}
					if tt.fails || reply.Outcome != lock.Granted {
						for _, p := range peers {
							p.mend()
						}
						time.Sleep(2 * time.Second)
						if n := quorumHolders(t, peers, "k"); n != tt.taken {
							t.Errorf("%d members are held, want the stranger's %d", n, tt.taken)
						}
					}
				})
			})
		}
	}
}

// Two that have split the votes give back what they have, and one of them has the lock soon after.
func TestQuorumSplitVote(t *testing.T) {
	inQuorum(t, 4, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 30 * time.Second
		for _, p := range peers[:2] {
			p.seize(t, "k", time.Second)
		}
		reply, err := q.AcquireLock(t.Context(), quorumRequest("k", "me", ttl))
		if err != nil || reply.Outcome != lock.Taken {
			t.Fatalf("got %+v, %v", reply, err)
		}
		synctest.Wait()
		if n := quorumHolders(t, peers, "k"); n != 2 {
			t.Fatalf("%d members are held, want the other's 2", n)
		}
		req := quorumRequest("k", "waits", ttl)
		req.Queue = true
		if reply, err := q.AcquireLock(t.Context(), req); err != nil || reply.Outcome != lock.Queued {
			t.Fatalf("got %+v, %v", reply, err)
		}
		began := time.Now()
		if _, err := q.AwaitLock(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(began); waited > 1300*time.Millisecond {
			t.Errorf("waited %v for a lease of a second", waited)
		}
		if held, err := q.VerifyLock(t.Context(), req2hold(req)); err != nil || !held {
			t.Errorf("VerifyLock: %v, %v", held, err)
		}
		if held, err := q.ReleaseLock(t.Context(), req2hold(req)); err != nil || !held {
			t.Errorf("ReleaseLock: %v, %v", held, err)
		}
		if held, err := q.ReleaseLock(t.Context(), req2hold(req)); err != nil || !held {
			t.Errorf("ReleaseLock, sent twice: %v, %v", held, err)
		}
		synctest.Wait()
		if n := quorumHolders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held after the release", n)
		}
	})
}

func req2hold(r lock.AcquireRequest) lock.HoldRequest {
	return lock.HoldRequest{Name: r.Name, Key: r.Key, ID: r.ID, TTL: r.TTL, Delay: r.Delay}
}

// What members grant after the attempt has failed is given back.
func TestQuorumLateGrant(t *testing.T) {
	inQuorum(t, 5, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = time.Minute
		for _, p := range peers[:3] {
			p.seize(t, "k", ttl)
		}
		peers[3].fail(quorumFault{before: time.Second}, "acquire")
		peers[4].fail(quorumFault{after: time.Second}, "acquire")
		if reply, err := q.AcquireLock(t.Context(), quorumRequest("k", "me", ttl)); err != nil || reply.Outcome != lock.Taken {
			t.Fatalf("got %+v, %v", reply, err)
		}
		time.Sleep(2 * time.Second)
		if n := quorumHolders(t, peers, "k"); n != 3 {
			t.Errorf("%d members are held, want the stranger's 3", n)
		}
	})
}

// A grant that comes late, but to an attempt that has not failed, is part of the hold.
func TestQuorumLateVote(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = time.Minute
		peers[2].fail(quorumFault{before: 100 * time.Millisecond}, "acquire")
		ctx, cancel := context.WithCancel(t.Context())
		reply, err := q.AcquireLock(ctx, quorumRequest("k", "me", ttl))
		cancel()
		if err != nil || reply.Outcome != lock.Granted || time.Since(reply.Sent) != 0 {
			t.Fatalf("got %+v, %v", reply, err)
		}
		time.Sleep(time.Second)
		if n := quorumHolders(t, peers, "k"); n != 3 {
			t.Errorf("%d members are held, want all", n)
		}
		if n := peers[2].count("raise"); n != 1 {
			t.Errorf("the late member was told the fence %d times", n)
		}
	})
}

func TestQuorumCallerLeaves(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		peers[1].fail(quorumFault{hung: true}, "acquire")
		peers[2].fail(quorumFault{before: time.Second}, "acquire")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := q.AcquireLock(ctx, quorumRequest("k", "me", time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if _, err := q.AcquireLock(ctx, quorumRequest("k", "again", time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(2 * time.Second)
		if n := quorumHolders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
	})
}

// A release that a member does not confirm is repeated until it does, or until the lease is over.
func TestQuorumReleasesUntilConfirmed(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = time.Minute
		mustAcquire(t, q, "k", "me", ttl)
		synctest.Wait()
		peers[0].fail(quorumFault{hung: true}, "release")
		began := time.Now()
		if held, err := q.ReleaseLock(t.Context(), quorumHold("k", "me", ttl)); err != nil || !held || time.Since(began) != 0 {
			t.Fatalf("ReleaseLock: %v, %v after %v", held, err, time.Since(began))
		}
		time.Sleep(10 * time.Second)
		peers[0].mend()
		time.Sleep(5 * time.Second)
		if peers[0].has(t, "k") {
			t.Error("the member that was hung was not told")
		}

		mustAcquire(t, q, "k", "again", ttl)
		synctest.Wait()
		for _, p := range peers[:2] {
			p.fail(quorumFault{down: true}, "release")
		}
		if held, err := q.ReleaseLock(t.Context(), quorumHold("k", "again", ttl)); !errors.Is(err, outage.ErrUnconfirmed) {
			t.Fatalf("ReleaseLock: %v, %v; want an outage", held, err)
		}
		time.Sleep(ttl + 5*time.Second)
		tries := peers[0].count("release")
		time.Sleep(time.Hour)
		if n := peers[0].count("release"); n != tries {
			t.Errorf("it was tried %d times after the lease", n-tries)
		}
	})
}

// A release is asked of every member though its caller has gone, and is repeated once for each, however
// often it is called.
func TestQuorumReleaseOfOneWhoLeaves(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = time.Minute
		mustAcquire(t, q, "k", "me", ttl)
		synctest.Wait()
		for _, p := range peers {
			p.fail(quorumFault{hung: true}, "release")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if held, err := q.ReleaseLock(ctx, quorumHold("k", "me", ttl)); !errors.Is(err, context.Canceled) {
				t.Fatalf("ReleaseLock: %v, %v", held, err)
			}
		}
		time.Sleep(10 * time.Second)
		for i, p := range peers {
			if n := p.count("release"); n < 101 || n > 110 {
				t.Errorf("member %d was asked %d times", i, n)
			}
			p.mend()
		}
		time.Sleep(5 * time.Second)
		if n := quorumHolders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}

		mustAcquire(t, q, "k", "again", ttl)
		synctest.Wait()
		for _, p := range peers {
			p.fail(quorumFault{before: 100 * time.Millisecond}, "release")
		}
		_, _ = q.ReleaseLock(ctx, quorumHold("k", "again", ttl))
		time.Sleep(time.Second)
		for i, p := range peers {
			if n := p.count("release"); n > 113 {
				t.Errorf("member %d was asked %d times: the caller's end has ended a request", i, n)
			}
		}
		if n := quorumHolders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
	})
}

func TestQuorumShutdown(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		l := newLockerNamed(t, q, "q")
		lease := mustLock(t, l, "k")
		synctest.Wait()
		peers[0].fail(quorumFault{down: true}, "release")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown while a member is down: %v", err)
		}
		wantEnded(t, lease, lock.ErrReleased)
		peers[0].mend()
		if err := q.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if n := quorumHolders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
	})
}

// A majority that answers when the lease is all but over is no use.
func TestQuorumTooSlow(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 10 * time.Millisecond
		for _, p := range peers {
			p.fail(quorumFault{before: 4 * time.Millisecond}, "acquire", "raise")
		}
		_, err := q.AcquireLock(t.Context(), quorumRequest("k", "me", ttl))
		if !errors.Is(err, outage.ErrUnavailable) || !strings.Contains(err.Error(), "the lease was over") {
			t.Errorf("8 of %v: %v", ttl, err)
		}
		synctest.Wait()
		if n := quorumHolders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
		for _, p := range peers {
			p.fail(quorumFault{before: 3 * time.Millisecond}, "acquire", "raise")
		}
		mustAcquire(t, q, "k", "again", ttl)
	})
}

func TestQuorumForgetfulMember(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 10 * time.Second
		peers[2].fail(quorumFault{down: true})
		first := newLockerNamed(t, q, "q", lock.WithTTL(ttl), lock.WithoutRenewal())
		lease := mustLock(t, first, "k")
		time.Sleep(time.Second)
		peers[1].restart()
		peers[2].mend()
		restarted := time.Now()

		// Members 1 and 2 are a majority, and know of no holder.
		second := newLockerNamed(t, newQuorum(t, peers), "q", lock.WithTTL(ttl))
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
			t.Errorf("it was closed for %v", waited)
		}
		if other.Fence().Number <= lease.Fence().Number {
			t.Errorf("the fence went from %d to %d", lease.Fence().Number, other.Fence().Number)
		}
		mustUnlock(t, other)
		time.Sleep(2 * ttl)
	})
}

// After a start of everything, nothing is granted for one longest lease.
func TestQuorumStart(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 10 * time.Second
		q.ExpectTTL(time.Minute)
		q.ExpectTTL(time.Second) // never shrinks
		for _, p := range peers {
			p.restart()
		}
		time.Sleep(time.Minute - time.Second)
		_, err := q.AcquireLock(t.Context(), quorumRequest("k", "early", ttl))
		if !errors.Is(err, outage.ErrUnavailable) || !strings.Contains(err.Error(), "may have forgotten") {
			t.Fatalf("AcquireLock: %v", err)
		}
		time.Sleep(time.Second)
		mustAcquire(t, q, "k", "me", ttl)

		// What is asked of Uptime counts from before the request: a member may have been started after
		// the grant that it reports.
		peers[0].restart()
		peers[1].restart()
		time.Sleep(time.Minute - 50*time.Millisecond)
		for _, p := range peers {
			p.fail(quorumFault{before: 60 * time.Millisecond}, "uptime")
		}
		if _, err := q.AcquireLock(t.Context(), quorumRequest("other", "slow", ttl)); !errors.Is(err, outage.ErrUnavailable) {
			t.Errorf("AcquireLock: %v", err)
		}
	})
}

func TestQuorumRenewal(t *testing.T) {
	const ttl = 10 * time.Second
	renew := func(t *testing.T, q *lock.QuorumStore, keys ...string) ([]bool, error) {
		t.Helper()
		var reqs []lock.HoldRequest
		for _, key := range keys {
			reqs = append(reqs, quorumHold(key, key, ttl))
		}
		return q.RenewLocks(t.Context(), reqs)
	}
	t.Run("a minority is lost", func(t *testing.T) {
		inQuorum(t, 5, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
			mustAcquire(t, q, "a", "a", ttl)
			synctest.Wait()
			peers[0].restart()
			peers[1].fail(quorumFault{hung: true})
			for range 5 {
				time.Sleep(5 * time.Second)
				if held, err := renew(t, q, "a"); err != nil || !held[0] {
					t.Fatalf("RenewLocks: %v, %v", held, err)
				}
			}
			if peers[0].has(t, "a") {
				t.Error("a renewal made a hold")
			}
		})
	})
	t.Run("a majority is lost", func(t *testing.T) {
		inQuorum(t, 5, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
			mustAcquire(t, q, "a", "a", ttl)
			synctest.Wait()
			for _, p := range peers[:3] {
				p.restart()
			}
			peers[3].fail(quorumFault{down: true})
			if held, err := renew(t, q, "a"); err != nil || held[0] {
				t.Errorf("RenewLocks: %v, %v", held, err)
			}
			if held, err := q.VerifyLock(t.Context(), quorumHold("a", "a", ttl)); err != nil || held {
				t.Errorf("VerifyLock: %v, %v", held, err)
			}
		})
	})
	t.Run("expired", func(t *testing.T) {
		inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, _ []*quorumPeer) {
			mustAcquire(t, q, "a", "a", ttl)
			time.Sleep(ttl)
			if held, err := renew(t, q, "a"); err != nil || held[0] {
				t.Errorf("RenewLocks: %v, %v", held, err)
			}
		})
	})
	t.Run("a majority is silent", func(t *testing.T) {
		inQuorum(t, 5, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
			mustAcquire(t, q, "a", "a", ttl)
			synctest.Wait()
			for _, p := range peers[:3] {
				p.fail(quorumFault{hung: true})
			}
			began := time.Now()
			if held, err := renew(t, q, "a"); !errors.Is(err, outage.ErrUnavailable) {
				t.Errorf("RenewLocks: %v, %v", held, err)
			}
			if took := time.Since(began); took > 200*time.Millisecond {
				t.Errorf("RenewLocks took %v", took)
			}
			if held, err := q.VerifyLock(t.Context(), quorumHold("a", "a", ttl)); !errors.Is(err, outage.ErrUnavailable) {
				t.Errorf("VerifyLock: %v, %v", held, err)
			}
			peers[0].mend()
			if held, err := renew(t, q, "a"); err != nil || !held[0] {
				t.Errorf("RenewLocks: %v, %v", held, err)
			}
		})
	})
	t.Run("one of many cannot be told", func(t *testing.T) {
		inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
			mustAcquire(t, q, "a", "a", ttl)
			mustAcquire(t, q, "c", "c", ttl)
			peers[2].fail(quorumFault{down: true})
			mustAcquire(t, q, "b", "b", ttl)
			synctest.Wait()
			peers[2].mend()
			peers[1].fail(quorumFault{down: true})
			if held, err := renew(t, q, "a", "b", "c"); !errors.Is(err, outage.ErrUnavailable) || !slices.Equal(held, []bool{true, false, true}) {
				t.Errorf("RenewLocks: %v, %v", held, err)
			}
			if held, err := renew(t, q, "b"); !errors.Is(err, outage.ErrUnavailable) {
				t.Errorf("RenewLocks: %v, %v", held, err)
			}
		})
	})
	if held, err := renewNothing(t); err != nil || len(held) != 0 {
		t.Errorf("RenewLocks of nothing: %v, %v", held, err)
	}
}

func renewNothing(t *testing.T) ([]bool, error) {
	t.Helper()
	q, err := lock.Quorum(memstore.New(), memstore.New(), memstore.New())
	if err != nil {
		t.Fatal(err)
	}
	return q.RenewLocks(t.Context(), nil)
}

// The fence grows though the member with the largest is in one majority and not in the next.
func TestQuorumFences(t *testing.T) {
	inQuorum(t, 5, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 10 * time.Second
		if err := peers[0].RaiseFence(t.Context(), "q", "k", 1<<52); err != nil {
			t.Fatal(err)
		}
		var last int64
		for i, dead := range [][2]int{{3, 4}, {0, 1}, {1, 2}, {0, 3}, {2, 4}, {0, 1}} {
			for _, d := range dead {
				peers[d].fail(quorumFault{down: true})
			}
			id := fmt.Sprintf("hold-%d", i)
			grant := mustAcquire(t, q, "k", id, ttl)
			if grant.Fence <= last || grant.Fence <= 1<<52 {
				t.Errorf("fence %d after %d", grant.Fence, last)
			}
			last = grant.Fence
			if held, err := q.ReleaseLock(t.Context(), quorumHold("k", id, ttl)); err != nil || !held {
				t.Fatalf("ReleaseLock: %v, %v", held, err)
			}
			for _, d := range dead {
				peers[d].mend()
			}
			time.Sleep(5 * time.Second) // for what is repeated in the background
		}
	})
}

func TestQuorumFenceMustBeWritten(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 10 * time.Second
		peers[0].fail(quorumFault{hung: true}, "raise")
		mustAcquire(t, q, "a", "a", ttl)
		peers[1].fail(quorumFault{down: true}, "raise")
		if reply, err := q.AcquireLock(t.Context(), quorumRequest("b", "b", ttl)); !errors.Is(err, outage.ErrUnavailable) {
			t.Errorf("got %+v, %v", reply, err)
		}
		synctest.Wait()
		if n := quorumHolders(t, peers, "b"); n != 0 {
			t.Errorf("%d members are held", n)
		}
		time.Sleep(2 * ttl)
	})
}

func TestQuorumLocker(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		l := newLockerNamed(t, q, "q")
		other := newLockerNamed(t, newQuorum(t, peers), "q")
		lease := mustLock(t, l, "k")
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("TryLock: %v", err)
		}
		if err := lease.Verify(t.Context()); err != nil {
			t.Errorf("Verify: %v", err)
		}
		time.Sleep(time.Hour) // renewed
		wantValid(t, lease)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := other.Lock(ctx, "k")
		if !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("Lock returned %v after %v", err, time.Since(began))
		}
		if n := peers[0].count("acquire"); n > 60 {
			t.Errorf("%d requests in a second", n)
		}

		p := start(func() (*lock.Lease, error) { return other.Lock(t.Context(), "k") })
		time.Sleep(10 * time.Second)
		mustUnlock(t, lease)
		time.Sleep(250 * time.Millisecond)
		if !p.returned() || p.err != nil {
			t.Fatalf("the one who waits has got %v", p.err)
		}
		if p.lease.Fence().Number <= lease.Fence().Number {
			t.Errorf("the fence went from %d to %d", lease.Fence().Number, p.lease.Fence().Number)
		}
		time.Sleep(time.Hour) // its hold has another ID than its request
		wantValid(t, p.lease)
		mustUnlock(t, p.lease)

		err = l.Do(t.Context(), "k", func(ctx context.Context) error {
			_, err := other.TryLock(ctx, "k")
			return err
		})
		if !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("Do: %v", err)
		}
		all, err := l.LockAll(t.Context(), []string{"a", "b", "c"})
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Unlock(t.Context()); err != nil {
			t.Error(err)
		}

		// One member fewer changes nothing.
		peers[1].fail(quorumFault{hung: true})
		lease = mustLock(t, l, "k")
		time.Sleep(time.Hour)
		wantValid(t, lease)
		mustUnlock(t, lease)
		// Two fewer, and the lease ends in time.
		lease = mustLock(t, l, "k")
		peers[0].fail(quorumFault{hung: true})
		time.Sleep(ttl)
		wantEnded(t, lease, lock.ErrExpired)
		if err := lease.Unlock(t.Context()); !errors.Is(err, outage.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
		began = time.Now()
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, outage.ErrUnavailable) || time.Since(began) > time.Second {
			t.Errorf("Lock: %v after %v", err, time.Since(began))
		}
		time.Sleep(2 * ttl)
	})
}

func TestQuorumWaitsThroughShortOutages(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		holder := newLockerNamed(t, newQuorum(t, peers), "q")
		l := newLockerNamed(t, q, "q")
		lease := mustLock(t, holder, "k")
		p := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		fail := func(f quorumFault) {
			for _, p := range peers[:2] {
				p.fail(f, "acquire")
			}
		}
		fail(quorumFault{down: true})
		time.Sleep(2 * time.Second)
		fail(quorumFault{})
		time.Sleep(2 * time.Second)
		fail(quorumFault{down: true})
		time.Sleep(2 * time.Second)
		if p.returned() {
			t.Fatalf("it gave up: %v", p.err)
		}
		time.Sleep(2 * time.Second)
		if !p.returned() || !errors.Is(p.err, outage.ErrUnavailable) {
			t.Errorf("it goes on: %v", p.err)
		}
		fail(quorumFault{})
		mustUnlock(t, lease)

		lease = mustLock(t, holder, "k")
		p = start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		for _, p := range peers {
			_ = p.store.Close()
		}
		time.Sleep(time.Second)
		if !p.returned() || !errors.Is(p.err, outage.ErrClosed) {
			t.Errorf("with closed members: %v", p.err)
		}
		_ = lease.Unlock(t.Context())
	})
}

func TestQuorumLockerClosed(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		for _, opts := range [][]lock.Option{nil, {lock.WithFair()}} {
			holder := newLockerNamed(t, newQuorum(t, peers), "q")
			l := newLockerNamed(t, q, "q", opts...)
			mustLock(t, holder, "k")
			p := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
			time.Sleep(time.Second)
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if !p.returned() || !errors.Is(p.err, lock.ErrClosed) {
				t.Errorf("the one who waits has got %v", p.err)
			}
			if err := holder.Close(); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if n := quorumHolders(t, peers, "k"); n != 0 {
				t.Errorf("%d members are held", n)
			}
		}
	})
}

func TestQuorumWithdrawal(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 10 * time.Second
		queue := func(id string) lock.AcquireRequest {
			req := quorumRequest("k", id, ttl)
			req.Queue = true
			if reply, err := q.AcquireLock(t.Context(), req); err != nil || reply.Outcome != lock.Queued {
				t.Fatalf("got %+v, %v", reply, err)
			}
			if reply, err := q.AcquireLock(t.Context(), req); err != nil || reply.Outcome != lock.Queued {
				t.Fatalf("sent twice: %+v, %v", reply, err)
			}
			return req
		}
		withdraw := func(req lock.AcquireRequest) {
			if held, err := q.ReleaseLock(t.Context(), req2hold(req)); err != nil || held {
				t.Errorf("ReleaseLock: %v, %v", held, err)
			}
		}
		mustAcquire(t, q, "k", "holder", ttl)
		before := queue("before")
		withdraw(before)
		if _, err := q.AwaitLock(t.Context(), before); !errors.Is(err, lock.ErrWithdrawn) {
			t.Errorf("AwaitLock after the release: %v", err)
		}
		if reply, err := q.AcquireLock(t.Context(), before); err != nil || reply.Outcome != lock.Withdrawn {
			t.Errorf("AcquireLock after the release: %+v, %v", reply, err)
		}
		await := func(req lock.AcquireRequest) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := q.AwaitLock(t.Context(), req)
				done <- err
			}()
			return done
		}
		during := queue("during")
		done := await(during)
		time.Sleep(time.Second)
		withdraw(during)
		synctest.Wait()
		if err := <-done; !errors.Is(err, lock.ErrWithdrawn) {
			t.Errorf("AwaitLock during the release: %v", err)
		}

		// Withdrawn while a majority is granting it.
		if held, err := q.ReleaseLock(t.Context(), quorumHold("k", "holder", ttl)); err != nil || !held {
			t.Fatalf("ReleaseLock: %v, %v", held, err)
		}
		synctest.Wait()
		peers[0].seize(t, "k", ttl)
		peers[1].seize(t, "k", time.Second)
		late := queue("late")
		for _, p := range peers {
			p.fail(quorumFault{after: 150 * time.Millisecond}, "raise")
		}
		done = await(late)
		for told := time.Now(); peers[1].count("raise") < 2; time.Sleep(time.Millisecond) {
			if time.Since(told) > ttl {
				t.Fatal("it was not granted")
			}
		}
		withdraw(late)
		if err := <-done; !errors.Is(err, lock.ErrWithdrawn) {
			t.Errorf("AwaitLock: %v", err)
		}
		time.Sleep(time.Second)
		if n := quorumHolders(t, peers, "k"); n != 1 {
			t.Errorf("%d members are held, want the stranger's", n)
		}

		// Asked again after it was granted.
		time.Sleep(ttl)
		peers[0].seize(t, "k", time.Second)
		peers[1].seize(t, "k", time.Second)
		again := queue("again")
		grant, err := q.AwaitLock(t.Context(), again)
		if err != nil {
			t.Fatal(err)
		}
		if second, err := q.AwaitLock(t.Context(), again); err != nil || second != grant {
			t.Errorf("AwaitLock, again: %+v, %v", second, err)
		}
		if reply, err := q.AcquireLock(t.Context(), again); err != nil || reply.Grant != grant {
			t.Errorf("AcquireLock, again: %+v, %v", reply, err)
		}
	})
}

// What is remembered of requests goes in time; what is held, or awaited, does not.
func TestQuorumForgetsRequests(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, peers []*quorumPeer) {
		const ttl = 10 * time.Second
		peers[0].seize(t, "k", time.Second)
		peers[1].seize(t, "k", time.Second)
		queue := func(id string) lock.AcquireRequest {
			req := quorumRequest("k", id, ttl)
			req.Queue = true
			if reply, err := q.AcquireLock(t.Context(), req); err != nil || reply.Outcome != lock.Queued {
				t.Fatalf("got %+v, %v", reply, err)
			}
			return req
		}
		holder := queue("holder")
		if _, err := q.AwaitLock(t.Context(), holder); err != nil {
			t.Fatal(err)
		}
		waiting := queue("waiting")
		done := make(chan error, 1)
		go func() {
			_, err := q.AwaitLock(t.Context(), waiting)
			done <- err
		}()
		var left []lock.AcquireRequest
		for range 3 {
			for i := range 100 { // places that nobody awaits, and nobody withdraws
				left = append(left, queue(fmt.Sprintf("leaves-%d-%v", i, time.Now())))
			}
			for range 40 {
				time.Sleep(2 * time.Second)
				if held, err := q.RenewLocks(t.Context(), []lock.HoldRequest{req2hold(holder)}); err != nil || !held[0] {
					t.Fatalf("RenewLocks: %v, %v", held, err)
				}
			}
		}
		for i, req := range []lock.AcquireRequest{left[0], left[99], left[len(left)-1]} {
			before := peers[2].count("acquire")
			if _, err := q.AcquireLock(t.Context(), req); err != nil {
				t.Error(err)
			}
			synctest.Wait() // two of the members decide; the third may be asked after that
			if known, want := peers[2].count("acquire") == before, i == 2; known != want {
				t.Errorf("request %d is remembered: %v, want %v", i, known, want)
			}
		}
		if held, err := q.ReleaseLock(t.Context(), req2hold(holder)); err != nil || !held {
			t.Errorf("ReleaseLock: %v, %v", held, err)
		}
		if err := <-done; err != nil {
			t.Errorf("AwaitLock: %v", err)
		}
	})
}

func TestQuorumNotSupported(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *lock.QuorumStore, _ []*quorumPeer) {
		l := newLockerNamed(t, q, "q")
		lease := mustLock(t, l, "k")
		defer mustUnlock(t, lease)
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, lock.ErrNotSupported) || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := l.RLock(t.Context(), "other")
		check("RLock", err)
		_, err = l.TryRLock(t.Context(), "other")
		check("TryRLock", err)
		_, err = q.AwaitLock(t.Context(), lock.AcquireRequest{Shared: true})
		check("AwaitLock", err)
		_, err = q.ReleaseLock(t.Context(), lock.HoldRequest{Shared: true})
		check("ReleaseLock", err)
		_, err = q.VerifyLock(t.Context(), lock.HoldRequest{Shared: true})
		check("VerifyLock", err)
		check("Downgrade", lease.Downgrade(t.Context()))
		_, err = l.Inspect(t.Context(), "k")
		check("Inspect", err)
		_, err = l.ForceUnlock(t.Context(), "k", 1)
		check("ForceUnlock", err)
		n := 0
		for _, err := range l.List(t.Context()) {
			check("List", err)
			n++
		}
		if n != 1 {
			t.Errorf("List yielded %d times", n)
		}
		wantValid(t, lease)
	})
}
