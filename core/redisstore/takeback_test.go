package redisstore_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestAnUnconfirmedAttemptIsGivenBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGuard(t, newStore(t, server.Client(), redisstore.WithTimeout(time.Second)))
	first, _, err := g.Begin(ctx(), guard.Operation{Key: "first"}) // connects, and loads the scripts
	if err == nil {
		err = first.Abandon(ctx())
	}
	if err != nil {
		t.Fatal(err)
	}
	operation := guard.Operation{Scope: "user", Key: "order"}
	signal := func(s syscall.Signal) {
		if err := server.Process().Signal(s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	stopped := true
	defer func() {
		if stopped {
			signal(syscall.SIGCONT)
		}
	}()
	_, _, err = g.Begin(ctx(), operation)
	wantUnavailable(t, err, true)
	signal(syscall.SIGCONT)
	stopped = false

	// The server continues, and carries the request out. The lease would last for 30 s.
	eventually(t, 3*time.Second, "another attempt may begin", func() bool {
		attempt, _, err := g.Begin(ctx(), operation)
		if err != nil {
			if !errors.Is(err, guard.ErrInFlight) && !errors.Is(err, store.ErrUnavailable) {
				t.Fatal(err)
			}
			return false
		}
		if attempt.Number() != 1 {
			t.Errorf("attempt %d begins, want 1", attempt.Number())
		}
		if err := attempt.Complete(ctx(), guard.Result{Status: 200}); err != nil {
			t.Error(err)
		}
		return true
	})
}

func TestABeginAfterItsOwnAbandonIsRefused(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, redistest.Start(t).Client())
	o := newOp("late")
	if owned, err := o.abandon(s); err != nil || owned {
		t.Fatalf("abandon of what has not begun: %v, %v", owned, err)
	}
	if reply, err := o.begin(s); err != nil || reply.Outcome != store.Refused {
		t.Errorf("got %+v, %v; want it refused", reply, err)
	}
	o.by("other").started(t, s)
}
