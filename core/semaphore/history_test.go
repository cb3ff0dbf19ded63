package semaphore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/history"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// check returns the errors in a history of one semaphore, whose events are in the order of time: more
// in use than its capacity, and permits in use at the end.
func check(events []history.Event, capacity int64) []string {
	var (
		wrong []string
		live  = map[string]int64{}
		dead  = map[string]bool{} // killed processes, whose late events do not count
		inUse int64
	)
	end := func(hold string) {
		inUse -= live[hold]
		delete(live, hold)
	}
	for _, e := range events {
		if dead[e.Process()] {
			continue
		}
		switch e.What {
		case history.Granted:
			live[e.Hold] = e.N
			if inUse += e.N; inUse > capacity {
				wrong = append(wrong, fmt.Sprintf("%d of %d in use", inUse, capacity))
			}
		case history.Ended:
			end(e.Hold)
		case history.Killed:
			dead[e.Hold] = true
			for hold := range live {
				if strings.HasPrefix(hold, e.Hold+"/") {
					end(hold)
				}
			}
		}
	}
	if inUse != 0 {
		wrong = append(wrong, fmt.Sprintf("%d in use at the end", inUse))
	}
	return wrong
}

// The check itself can fail.
func TestCheckFindsErrors(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	right := []history.Event{
		{At: at(0), What: history.Granted, Hold: "1/1", N: 2}, {At: at(1), What: history.Granted, Hold: "2/1", N: 1},
		{At: at(2), What: history.Ended, Hold: "1/1", N: 2}, {At: at(3), What: history.Granted, Hold: "1/2", N: 2},
		{At: at(4), What: history.Killed, Hold: "1"}, {At: at(5), What: history.Granted, Hold: "2/2", N: 2},
		{At: at(6), What: history.Ended, Hold: "2/1", N: 1}, {At: at(7), What: history.Ended, Hold: "2/2", N: 2},
	}
	if wrong := check(right, 3); len(wrong) != 0 {
		t.Errorf("a good history: %v", wrong)
	}
	for name, spoil := range map[string]func([]history.Event){
		"too many":     func(h []history.Event) { h[0].N = 3 },
		"not ended":    func(h []history.Event) { h[2].Hold = "1/7" },
		"left in use":  func(h []history.Event) { h[7].Hold = "2/7" },
		"wrong victim": func(h []history.Event) { h[4].Hold = "3" },
	} {
		h := slices.Clone(right)
		spoil(h)
		if wrong := check(h, 3); len(wrong) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

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
			for _, wrong := range check(events, int64(capacity)) {
				t.Error(wrong)
			}
		})
	}
}

func TestHistoriesOfABrokenStore(t *testing.T) {
	for _, capacity := range []int{1, 5} {
		if wrong := check(record(t, brokenly, capacity, 1), int64(capacity)); len(wrong) == 0 {
			t.Errorf("nothing was found of a capacity of %d", capacity)
		}
	}
}
