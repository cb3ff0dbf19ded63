package zkstore

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// The environment of the processes of TestLockHistories.
const (
	historyServer = "ZKSTORE_TEST_HISTORY_SERVER"
	historyChroot = "ZKSTORE_TEST_HISTORY_CHROOT"
)

// TestHistoryOfLocks is one of the processes of TestLockHistories.
func TestHistoryOfLocks(t *testing.T) {
	child := history.NewChild(t)
	s := open(t, []string{os.Getenv(historyServer)}, append(append([]Option(nil), short...), WithChroot(os.Getenv(historyChroot)))...)
	l, err := lock.New(s, "history", lock.WithTTL(shortTTL))
	must(t, err)
	child.Compete(3, 3*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		lease, err := l.Lock(ctx, "k")
		if err != nil {
			return nil, 0, nil, err
		}
		return lease, lease.Fence().Number, func() { _ = lease.Unlock(ctx) }, nil
	})
	_ = l.Close()
}

// Processes with several goroutines each, which are killed one after the other: the leases of live
// ones never overlap, fences grow, and a death costs at most a session.
func TestLockHistories(t *testing.T) {
	t.Parallel()
	r := &history.Recording{Test: "TestHistoryOfLocks", Env: []string{
		historyServer + "=" + zktest.Shared(t).Addr(), historyChroot + "=" + zktest.NewChroot(),
	}}
	events := r.Run(t, 8, rounds(4))
	history.WantGrants(t, events, 50)
	shared := func(hold string) bool { return strings.HasSuffix(hold, "r") }
	for _, wrong := range history.CheckLock(events, shared, testpace.Scale(10*time.Second)) {
		t.Error(wrong)
	}
}
