package servertest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// TestElectionHistoryProcess is one of the processes of TestHistoriesOfAnElection.
func TestElectionHistoryProcess(t *testing.T) {
	child := history.NewChild(t)
	st := newStore(t, connect(t, os.Getenv(historyRedis)), redisstore.WithTimeout(historyTimeout))
	e := must(election.New(newLocker(t, st, lock.WithTTL(historyTTL)), "leader"))
	child.Compete(1, 20*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		term, err := e.Campaign(ctx)
		if err != nil {
			return nil, 0, nil, err
		}
		lease, _ := lock.FromContext(term.Context())
		return lease, term.Fence().Number, func() { _ = term.Resign(ctx) }, nil
	})
}

// Five processes campaign, lead and resign, and are killed one after the other: their terms never
// overlap, fences grow, and a death costs at most a lease and a heartbeat.
func TestHistoriesOfAnElection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	allowed := lateness(t, server)
	r := &history.Recording{Test: "TestElectionHistoryProcess", Env: []string{historyRedis + "=" + server.Addr()}}
	events := r.Run(t, 5, 5)
	history.WantGrants(t, events, 100)
	for _, wrong := range check(events, historyTTL+time.Second+500*time.Millisecond+allowed()) {
		t.Error(wrong)
	}
}
