package semaphore_test

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/history"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

const (
	historyRedis    = "SEMAPHORE_TEST_HISTORY_REDIS"
	historyStore    = "SEMAPHORE_TEST_HISTORY_STORE"
	historyCapacity = "SEMAPHORE_TEST_HISTORY_CAPACITY"

	historyTTL = 400 * time.Millisecond
	brokenly   = "broken"
)

// generous is a broken store: it grants one permit more than the capacity.
type generous struct{ store.Leases }

func (s generous) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	req.Capacity++
	return s.Leases.AcquireLease(ctx, req)
}

// TestHistoryProcess is one of the processes of TestHistories.
func TestHistoryProcess(t *testing.T) {
	child := history.NewChild(t)
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: os.Getenv(historyRedis), ReadTimeout: time.Second, PoolSize: 20})
	defer func() { _ = client.Close() }()
	redisStore := must(redisstore.New(client))
	defer redisStore.Close()
	st := leasesOf(t, redisStore)
	if os.Getenv(historyStore) == brokenly {
		st = generous{st}
	}
	capacity := must(strconv.Atoi(os.Getenv(historyCapacity)))
	s := must(semaphore.New(st, "history", capacity, semaphore.WithTTL(historyTTL), semaphore.WithHolder(child.Name)))
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

// record runs 4 processes with 16 goroutines each, which compete for permits of weight 1 to 3 and are
// killed one after the other. The permits of a killed process expire within the lease.
func record(t *testing.T, st string, capacity, kills int) []history.Event {
	t.Helper()
	server := redistest.Start(t)
	redisStore := must(redisstore.New(server.Client()))
	t.Cleanup(func() { _ = redisStore.Close() })
	watcher := leasesOf(t, redisStore)
	state := func() store.LeaseState {
		for began := time.Now(); ; { // the machine may be busy
			state, err := watcher.InspectLease(context.Background(), store.SemaphoreKind+"history", "k")
			if err == nil {
				return state
			}
			if time.Since(began) > 5*time.Second {
				t.Fatal(err)
			}
		}
	}
	r := &history.Recording{
		Test: "TestHistoryProcess",
		Env: []string{
			historyRedis + "=" + server.Addr(), historyStore + "=" + st, historyCapacity + "=" + strconv.Itoa(capacity),
		},
		Dead: func(process string) {
			died := time.Now()
			held := func() bool {
				return slices.ContainsFunc(state().Holders, func(h store.LeaseHolder) bool { return h.Label == process })
			}
			for held() {
				if time.Since(died) > historyTTL+time.Second { // a second for a busy machine
					t.Errorf("%s is dead, and still holds permits", process)
					return
				}
			}
		},
	}
	events := r.Run(t, 4, kills)
	for died := time.Now(); ; {
		left := state()
		if left.InUse == 0 {
			return events
		}
		if time.Since(died) > 2500*time.Millisecond { // reservations of killed processes
			t.Errorf("left: %+v", left)
			return events
		}
	}
}

func TestHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	for _, capacity := range []int{1, 5, 100} {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			t.Parallel()
			events := record(t, "", capacity, 4)
			history.WantGrants(t, events, 100)
			for _, wrong := range history.CheckSemaphore(events, int64(capacity)) {
				t.Error(wrong)
			}
		})
	}
}

func TestHistoriesOfABrokenStore(t *testing.T) {
	for _, capacity := range []int{1, 5} {
		if wrong := history.CheckSemaphore(record(t, brokenly, capacity, 1), int64(capacity)); len(wrong) == 0 {
			t.Errorf("nothing was found of a capacity of %d", capacity)
		}
	}
}
