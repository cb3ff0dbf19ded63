package servertest

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// reader ends the names of shared leases.
const reader = "r"

func shared(hold string) bool { return strings.HasSuffix(hold, reader) }

func check(events []history.Event, longest time.Duration) []string {
	return history.CheckLock(events, shared, longest)
}

// Variables of the processes of a history.
const (
	historyRedis = "SERVERTEST_HISTORY_REDIS"
	historyStore = "SERVERTEST_HISTORY_STORE"

	brokenly = "broken"
)

// historyTTL is short, since the leases of killed processes must run out. Those of a live one may,
// too, if the machine is busy.
var historyTTL = testpace.Scale(400 * time.Millisecond)

// historyTimeout is that of their calls.
const historyTimeout = 2 * time.Second

// stealing is a broken store: it grants a lock that is held.
type stealing struct{ store.Leases }

func (s stealing) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	reply, err := s.Leases.AcquireLease(ctx, req)
	if err == nil && reply.Outcome != store.Granted && rand.IntN(4) == 0 {
		state, err := s.Leases.(store.LeaseLister).InspectLease(ctx, req.Name, req.Key)
		if err == nil && len(state.Holders) > 0 {
			return store.LeaseReply{Outcome: store.Granted, Grant: store.Grant{Sent: time.Now(), Fence: state.Holders[0].LastFence + 1}}, nil
		}
	}
	return reply, err
}

// TestLockHistoryProcess is one of the processes of TestHistoriesOfALock.
func TestLockHistoryProcess(t *testing.T) {
	child := history.NewChild(t)
	redisStore := newStore(t, connect(t, os.Getenv(historyRedis)), redisstore.WithTimeout(historyTimeout))
	var st store.Leases = redisStore
	if os.Getenv(historyStore) == brokenly {
		st = stealing{st}
	}
	l := newLocker(t, st, lock.WithTTL(historyTTL))
	child.Compete(8, 3*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		lease, err := l.Lock(ctx, "k")
		if err != nil {
			return nil, 0, nil, err
		}
		return lease, lease.Fence().Number, func() { _ = lease.Unlock(ctx) }, nil
	})
}

// recordLock runs 8 processes with 8 goroutines each, which compete for a lock and are killed one
// after the other.
func recordLock(t *testing.T, server *redistest.Server, st string, kills int) []history.Event {
	t.Helper()
	r := &history.Recording{
		Test: "TestLockHistoryProcess", Env: []string{historyRedis + "=" + server.Addr(), historyStore + "=" + st},
	}
	return r.Run(t, 8, kills)
}

// The leases of live processes never overlap, fences grow, and a death costs at most a lease and a
// heartbeat.
func TestHistoriesOfALock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	allowed := lateness(t, server)
	events := recordLock(t, server, "", 10)
	history.WantGrants(t, events, 100)
	for _, wrong := range check(events, historyTTL+time.Second+500*time.Millisecond+allowed()) {
		t.Error(wrong)
	}
}

func TestHistoriesOfALockOnABrokenStore(t *testing.T) {
	t.Parallel()
	for range 5 { // on a busy machine they may compete too little
		if wrong := check(recordLock(t, redistest.Start(t), brokenly, 1), time.Minute); len(wrong) > 0 {
			return
		}
	}
	t.Error("nothing was found")
}
