package lock_test

import (
	"context"
	"math/rand/v2"
	"os"
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

func check(events []history.Event, longest time.Duration) []string {
	return history.CheckLock(events, shared, longest)
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
