package lock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/history"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// reader ends the names of shared leases.
const reader = "r"

func shared(hold string) bool { return strings.HasSuffix(hold, reader) }

// check returns the errors in a history of one lock, whose events are in the order of time: leases
// that overlap, except shared ones, fences of exclusive ones that do not grow, and too long gaps
// between a lease's end and the next grant.
func check(events []history.Event, longest time.Duration) []string {
	var (
		wrong []string
		live  = map[string]bool{}
		dead  = map[string]bool{} // killed processes, whose late events do not count
		last  int64
		free  time.Time
	)
	for _, e := range events {
		if dead[e.Process()] {
			continue
		}
		switch e.What {
		case history.Granted:
			for other := range live {
				if !shared(e.Hold) || !shared(other) {
					wrong = append(wrong, fmt.Sprintf("%s was granted while %s was valid", e.Hold, other))
				}
			}
			if !shared(e.Hold) {
				if e.N <= last {
					wrong = append(wrong, fmt.Sprintf("fence %d after %d", e.N, last))
				}
				last = e.N
			}
			if gap := e.At.Sub(free); !free.IsZero() && gap > longest {
				wrong = append(wrong, fmt.Sprintf("no process had the lock for %v", gap))
			}
			live[e.Hold] = true
		case history.Ended:
			delete(live, e.Hold)
			free = e.At
		case history.Killed:
			dead[e.Hold] = true
			for lease := range live {
				if strings.HasPrefix(lease, e.Hold+"/") {
					delete(live, lease)
					free = e.At
				}
			}
		}
	}
	return wrong
}

// The check itself can fail.
func TestCheckFindsErrors(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	right := []history.Event{
		{At: at(0), What: history.Granted, Hold: "1/1", N: 5}, {At: at(10), What: history.Ended, Hold: "1/1", N: 5},
		{At: at(12), What: history.Granted, Hold: "2/1", N: 9}, {At: at(20), What: history.Killed, Hold: "2"},
		{At: at(500), What: history.Granted, Hold: "3/1", N: 10}, {At: at(600), What: history.Ended, Hold: "3/1", N: 10},
	}
	if wrong := check(right, time.Second); len(wrong) != 0 {
		t.Errorf("a good history: %v", wrong)
	}
	for name, spoil := range map[string]func([]history.Event){
		"overlap":      func(h []history.Event) { h[1].Hold = "3/1" },
		"fence":        func(h []history.Event) { h[2].N = 5 },
		"stall":        func(h []history.Event) { h[4].At = at(1400) },
		"wrong victim": func(h []history.Event) { h[3].Hold = "1" },
	} {
		h := slices.Clone(right)
		spoil(h)
		if wrong := check(h, time.Second); len(wrong) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

const (
	historyRedis = "LOCK_TEST_HISTORY_REDIS"
	historyStore = "LOCK_TEST_HISTORY_STORE"

	historyTTL = 400 * time.Millisecond
	brokenly   = "broken"
)

// stealing is a broken store: it grants a lock that is held.
type stealing struct{ store.Leases }

func (s stealing) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	reply, err := s.Leases.AcquireLease(ctx, req)
	if err == nil && reply.Outcome != store.Granted && rand.IntN(4) == 0 {
		state, err := s.InspectLease(ctx, req.Name, req.Key)
		if err == nil && len(state.Holders) > 0 {
			return store.LeaseReply{Outcome: store.Granted, Grant: store.Grant{Sent: time.Now(), Fence: state.Holders[0].LastFence + 1}}, nil
		}
	}
	return reply, err
}

// TestHistoryProcess is one of the processes of TestHistories.
func TestHistoryProcess(t *testing.T) {
	child := history.NewChild(t)
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: os.Getenv(historyRedis), ReadTimeout: time.Second})
	defer func() { _ = client.Close() }()
	redisStore := must(redisstore.New(client))
	defer redisStore.Close()
	st := leasesOf(t, redisStore)
	if os.Getenv(historyStore) == brokenly {
		st = stealing{st}
	}
	l := must(lock.New(st, "history", lock.WithTTL(historyTTL)))
	child.Compete(8, 3*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		lease, err := l.Lock(ctx, "k")
		if err != nil {
			return nil, 0, nil, err
		}
		return lease, lease.Fence().Number, func() { _ = lease.Unlock(ctx) }, nil
	})
	_ = l.Close()
}

func record(t *testing.T, st string, kills int) []history.Event {
	t.Helper()
	leasesOf(t, (*redisstore.Store)(nil))
	r := &history.Recording{
		Test: "TestHistoryProcess", Env: []string{historyRedis + "=" + redistest.Start(t).Addr(), historyStore + "=" + st},
	}
	return r.Run(t, 8, kills)
}

// 8 processes with 8 goroutines each, which are killed one after the other: the leases of live ones
// never overlap, fences grow, and a death costs at most a lease and a heartbeat.
func TestHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	events := record(t, "", 10)
	history.WantGrants(t, events, 100)
	for _, wrong := range check(events, historyTTL+time.Second+500*time.Millisecond) {
		t.Error(wrong)
	}
}

func TestHistoriesOfABrokenStore(t *testing.T) {
	if wrong := check(record(t, brokenly, 1), time.Minute); len(wrong) == 0 {
		t.Error("nothing was found")
	}
}
