package quorum_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/quorum"
)

// Eight processes with five members that fail at random: never two holders, and growing fences.
func TestContention(t *testing.T) {
	for _, tt := range []struct {
		name    string
		restart bool // members lose all state at times
		ahead   bool // some members' fences are far ahead; they would be lost in a restart
	}{{"restarts", true, false}, {"fences apart", false, true}} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%s %d", tt.name, seed), func(t *testing.T) {
				t.Parallel()
				inQuorum(t, 5, func(t *testing.T, _ *quorum.Store, peers []*peer) {
					var (
						mu     sync.Mutex
						random = rand.New(rand.NewPCG(seed, 0))
					)
					chance := func(percent int) bool { return random.IntN(100) < percent }
					upTo := func(d time.Duration) time.Duration { return time.Duration(random.Int64N(int64(d))) }
					fault := func(string) fault {
						mu.Lock()
						defer mu.Unlock()
						f := fault{before: upTo(2 * time.Millisecond), after: upTo(2 * time.Millisecond)}
						if chance(5) {
							f.before = upTo(time.Second)
						}
						if chance(5) {
							f.after = upTo(time.Second)
						}
						switch percent := random.IntN(100); {
						case percent < 3:
							f.lost = true
						case percent < 6:
							f.down = true
						case percent < 7:
							f.hung = true
						}
						return f
					}
					for i, p := range peers {
						if tt.ahead {
							_ = p.store.RaiseFence(t.Context(), "q", "k", time.Now().UnixMicro()+int64(i)*1e12)
						}
						p.mu.Lock()
						p.fault = fault
						p.mu.Unlock()
					}
					crowd(t, peers, tt.restart, func(d time.Duration) time.Duration {
						mu.Lock()
						defer mu.Unlock()
						return upTo(d)
					})
				})
			})
		}
	}
}

// crowd runs lockers of eight processes that compete for a key for two minutes.
func crowd(t *testing.T, peers []*peer, restart bool, upTo func(time.Duration) time.Duration) {
	const ttl = 500 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		holder *lock.Lease
		fence  int64
		grants int
	)
	for range 8 {
		q := newQuorum(t, peers)
		l := newLocker(t, q, "q", lock.WithTTL(ttl))
		wg.Go(func() {
			for ctx.Err() == nil {
				waiting, stop := context.WithCancel(ctx)
				leave := time.AfterFunc(upTo(10*time.Second), stop) // the lease's context would end with a deadline
				lease, err := l.Lock(waiting, "k")
				leave.Stop()
				if err != nil {
					stop()
					time.Sleep(upTo(time.Second))
					continue
				}
				mu.Lock()
				if lease.Context().Err() == nil {
					if holder != nil && holder.Context().Err() == nil {
						t.Errorf("two holders, with the fences %d and %d", holder.Fence().Number, lease.Fence().Number)
					}
					if lease.Fence().Number <= fence {
						t.Errorf("fence %d after %d", lease.Fence().Number, fence)
					}
					holder, fence = lease, lease.Fence().Number
					grants++
				}
				mu.Unlock()
				select {
				case <-lease.Context().Done():
				case <-time.After(upTo(2 * time.Second)):
				}
				mu.Lock()
				if holder == lease {
					holder = nil
				}
				mu.Unlock()
				_ = lease.Unlock(ctx)
				stop()
			}
			_ = q.Shutdown(context.Background())
		})
	}
	if restart {
		wg.Go(func() {
			for ctx.Err() == nil {
				time.Sleep(upTo(2 * time.Second))
				peers[int(upTo(time.Duration(len(peers))))].restart()
			}
		})
	}
	wg.Wait()
	t.Logf("%d grants", grants)
	if grants < 30 {
		t.Errorf("%d grants in two minutes", grants)
	}
	for _, p := range peers {
		p.mend()
	}
	time.Sleep(time.Minute)
}
