package servertest

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
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// historyCapacity is the variable of the processes with the capacity.
const historyCapacity = "SERVERTEST_HISTORY_CAPACITY"

// generous is a broken store: it grants one permit more than the capacity.
type generous struct{ store.Leases }

func (s generous) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	req.Capacity++
	return s.Leases.AcquireLease(ctx, req)
}

// TestPermitHistoryProcess is one of the processes of TestHistoriesOfPermits.
func TestPermitHistoryProcess(t *testing.T) {
	child := history.NewChild(t)
	options := patiently(os.Getenv(historyRedis))
	options.PoolSize = 20
	client := redis.NewClient(options)
	defer func() { _ = client.Close() }()
	redisStore := newStore(t, client, redisstore.WithTimeout(historyTimeout))
	defer redisStore.Close()
	var st store.Leases = redisStore
	if os.Getenv(historyStore) == brokenly {
		st = generous{st}
	}
	capacity := must(strconv.Atoi(os.Getenv(historyCapacity)))
	s := must(semaphore.New(st, "test", capacity, semaphore.WithTTL(historyTTL), semaphore.WithHolder(child.Name)))
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

// recordPermits runs 4 processes with 16 goroutines each, which compete for permits of weight 1 to 3
// and are killed one after the other. The permits of a killed process expire within the lease.
func recordPermits(t *testing.T, st string, capacity, kills int) []history.Event {
	t.Helper()
	server := redistest.Start(t)
	allowed := lateness(t, server)
	watcher := newStore(t, connect(t, server.Addr()))
	state := func() store.LeaseState {
		return must(watcher.InspectLease(context.Background(), store.SemaphoreKind+"test", "k"))
	}
	r := &history.Recording{
		Test: "TestPermitHistoryProcess",
		Env: []string{
			historyRedis + "=" + server.Addr(), historyStore + "=" + st, historyCapacity + "=" + strconv.Itoa(capacity),
		},
		Dead: func(process string) {
			died := time.Now()
			held := func() bool {
				return slices.ContainsFunc(state().Holders, func(h store.LeaseHolder) bool { return h.Label == process })
			}
			for held() {
				if time.Since(died) > historyTTL+time.Second+allowed() {
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
		if time.Since(died) > 2500*time.Millisecond+allowed() { // reservations of killed processes
			t.Errorf("left: %+v", left)
			return events
		}
	}
}

func TestHistoriesOfPermits(t *testing.T) {
	t.Parallel()
	for _, capacity := range []int{1, 5, 100} {
		t.Run(strconv.Itoa(capacity), func(t *testing.T) {
			t.Parallel()
			events := recordPermits(t, "", capacity, 4)
			history.WantGrants(t, events, 100)
			for _, wrong := range history.CheckSemaphore(events, int64(capacity)) {
				t.Error(wrong)
			}
		})
	}
}

func TestHistoriesOfPermitsOnABrokenStore(t *testing.T) {
	t.Parallel()
	for _, capacity := range []int{1, 5} {
		if wrong := history.CheckSemaphore(recordPermits(t, brokenly, capacity, 1), int64(capacity)); len(wrong) == 0 {
			t.Errorf("nothing was found of a capacity of %d", capacity)
		}
	}
}
