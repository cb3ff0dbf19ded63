package connectmw_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A handler that returns neither a message nor an error when its context is over has given up: that is no
// answer, and is not kept as one.
func TestAHandlerThatGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		opts     []policy.RPCIdempotencyOption
		deadline time.Duration
		loses    bool
		first    connect.Code
	}{
		"a maximum time":      {opts: []policy.RPCIdempotencyOption{policy.MaxRun(50 * time.Millisecond)}, first: connect.CodeUnavailable},
		"a deadline":          {deadline: testpace.Scale(time.Second), first: connect.CodeDeadlineExceeded},
		"a lock that is lost": {loses: true, first: connect.CodeUnavailable},
	} {
		for _, clean := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				var s service
				st := newStore(t)
				locker := newLocker(t, st)
				s.make = func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
					if attempt, found := guard.FromContext(ctx); found && clean {
						ok(t, attempt.MarkClean(ctx))
					}
					if s.runs.Load() > 1 {
						return &things.Thing{Text: "run 2"}, nil
					}
					if lease, found := lock.FromContext(ctx); found && c.loses {
						_, _ = locker.ForceUnlock(context.WithoutCancel(ctx), lease.Key(), lease.Fence().Number)
						_ = lease.Verify(ctx)
					}
					<-ctx.Done()
					return nil, nil //nolint:nilnil // the mistake
				}
				client := serve(t, &s, idempotency.New(newGuard(t, st), byUser, c.opts...), exclusive.New(locker, connectmw.Global()))
				ctx := keyed(t, "k")
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if _, err := client.Make(ctx, &things.MakeRequest{}); codeOf(err) != c.first {
					t.Errorf("first %v, want %v", err, c.first)
				}
				thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
				for codeOf(err) == connect.CodeAborted { // the handler has a moment more than its client
					thing, err = client.Make(keyed(t, "k"), &things.MakeRequest{})
				}
				if clean {
					is(t, thing, err, "run 2")
				} else {
					denies(t, err, policy.OutcomeUnknown)
					s.ran(t, 1)
				}
			})
		}
	}
}
