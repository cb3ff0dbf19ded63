package pgstore

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
)

const (
	historyDSN      = "LEASES_TEST_HISTORY_DSN"
	historyCapacity = "LEASES_TEST_HISTORY_CAPACITY" // of a semaphore
	historyFair     = "LEASES_TEST_HISTORY_FAIR"
	historyTTL      = 400 * time.Millisecond
	// pushedTTL is how long a killed process has what was pushed to it, on a machine so busy that what it
	// has sent before is carried out late.
	pushedTTL = 2*time.Second + patience
)

// reader ends the names of shared leases.
const reader = "r"

func shared(hold string) bool { return strings.HasSuffix(hold, reader) }

func historyStore(t *testing.T) *Store {
	t.Helper()
	return openTestStore(t, os.Getenv(historyDSN))
}

// TestHistoryOfLocks is one of the processes of TestLockHistories.
func TestHistoryOfLocks(t *testing.T) {
	child := history.NewChild(t)
	opts := []lock.Option{lock.WithTTL(historyTTL)}
	if os.Getenv(historyFair) != "" {
		opts = append(opts, lock.WithFair())
	}
	l, err := lock.New(historyStore(t), "history", opts...)
	if err != nil {
		t.Fatal(err)
	}
	child.Compete(4, 3*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		lease, err := l.Lock(ctx, "k")
		if err != nil {
			return nil, 0, nil, err
		}
		return lease, lease.Fence().Number, func() { _ = lease.Unlock(ctx) }, nil
	})
	_ = l.Close()
}

// 8 processes with 4 goroutines each, which are killed one after the other: the leases of live ones
// never overlap, fences grow, and a death costs at most a lease and a heartbeat, and on a busy machine the
// timeout of a step.
func TestLockHistories(t *testing.T) {
	t.Parallel()
	for _, fair := range []string{"", "fair"} {
		t.Run(fair, func(t *testing.T) {
			t.Parallel()
			var late []string
			for range 3 { // a machine that is busy with other things makes some grants late, and what is wrong always some
				r := &history.Recording{Test: "TestHistoryOfLocks", Env: []string{historyDSN + "=" + migrated(t), historyFair + "=" + fair}}
				events := r.Run(t, 8, 10)
				history.WantGrants(t, events, 100)
				for _, wrong := range history.CheckLock(events, shared, time.Hour) {
					t.Error(wrong)
				}
				late = history.CheckLock(events, shared, historyTTL+2*time.Second+500*time.Millisecond)
				if t.Failed() || len(late) == 0 {
					return
				}
				t.Log(late)
			}
			t.Error(late)
		})
	}
}

// TestHistoryOfPermits is one of the processes of TestSemaphoreHistories.
func TestHistoryOfPermits(t *testing.T) {
	child := history.NewChild(t)
	capacity, err := strconv.Atoi(os.Getenv(historyCapacity))
	if err != nil {
		t.Fatal(err)
	}
	s, err := semaphore.New(historyStore(t), "history", capacity, semaphore.WithTTL(historyTTL), semaphore.WithHolder(child.Name))
	if err != nil {
		t.Fatal(err)
	}
	child.Compete(16, 5*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		permit, err := s.AcquireN(ctx, "k", min(1+rand.IntN(3), capacity))
		if err != nil {
			return nil, 0, nil, err
		}
		release := permit.ReleaseAsync
		if rand.IntN(2) == 0 {
			release = func() { _ = permit.Release(ctx) }
		}
		return permit, int64(permit.Weight()), release, nil
	})
	_ = s.Close()
}

// 4 processes with 16 goroutines each compete for permits of weight 1 to 3, and are killed one after
// the other: their permits expire within the lease, and no more are in use than there are.
func TestSemaphoreHistories(t *testing.T) {
	t.Parallel()
	for _, capacity := range []int{1, 5, 100} {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			t.Parallel()
			dsn := migrated(t)
			watcher := openTestStore(t, dsn)
			state := func() store.LeaseState {
				state, err := watcher.InspectLease(context.Background(), store.SemaphoreKind+"history", "k")
				if err != nil {
					t.Fatal(err)
				}
				return state
			}
			r := &history.Recording{
				Test: "TestHistoryOfPermits",
				Env:  []string{historyDSN + "=" + dsn, historyCapacity + "=" + strconv.Itoa(capacity)},
				Dead: func(process string) {
					died := time.Now()
					for ; slices.ContainsFunc(state().Holders, func(h store.LeaseHolder) bool { return h.Label == process }); <-time.After(5 * time.Millisecond) {
						if time.Since(died) > pushedTTL {
							t.Errorf("%s is dead, and still holds permits", process)
							return
						}
					}
				},
			}
			events := r.Run(t, 4, 4)
			history.WantGrants(t, events, 100)
			for _, wrong := range history.CheckSemaphore(events, int64(capacity)) {
				t.Error(wrong)
			}
			for died := time.Now(); state().InUse > 0; <-time.After(5 * time.Millisecond) {
				if time.Since(died) > pushedTTL {
					t.Errorf("left: %+v", state())
					return
				}
			}
		})
	}
}
