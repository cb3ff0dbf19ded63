package rpctest

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A handler that returns neither a message nor an error when its context is over has given up: that
// is no answer, and is not kept as one.
func aHandlerThatGivesUp(t *rig) {
	for name, c := range map[string]struct {
		opts     []policy.RPCIdempotencyOption
		deadline time.Duration
		loses    bool
		first    Code
	}{
		"a maximum time":      {opts: []policy.RPCIdempotencyOption{policy.MaxRun(50 * time.Millisecond)}, first: Unavailable},
		"a deadline":          {deadline: testpace.Scale(time.Second), first: DeadlineExceeded},
		"a lock that is lost": {loses: true, first: Unavailable},
	} {
		for _, clean := range []bool{false, true} {
			t.Run(name, func(t *rig) {
				var s Service
				st := newStore(t)
				locker := NewLocker(t, st)
				s.make = func(ctx context.Context, _ *Request) (*Thing, error) {
					if attempt, found := guard.FromContext(ctx); found && clean {
						ok(t, attempt.MarkClean(ctx))
					}
					if s.runs.Load() > 1 {
						return &Thing{Text: "run 2"}, nil
					}
					if lease, found := lock.FromContext(ctx); found && c.loses {
						_, _ = locker.ForceUnlock(context.WithoutCancel(ctx), lease.Key(), lease.Fence().Number)
						_ = lease.Verify(ctx)
					}
					<-ctx.Done()
					return nil, nil //nolint:nilnil // the mistake
				}
				client := serve(t, &s, t.Idempotency(NewGuard(t, st), byUser(t), c.opts...), t.Exclusive(locker, t.Global()))
				ctx := keyed(t, "k")
				if c.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, c.deadline)
					defer cancel()
				}
				if _, err := client.Make(ctx, &Request{}); t.CodeOf(err) != c.first {
					t.Errorf("first %v, want %v", err, c.first)
				}
				thing, err := client.Make(keyed(t, "k"), &Request{})
				for t.CodeOf(err) == Aborted { // the handler has a moment more than its client
					thing, err = client.Make(keyed(t, "k"), &Request{})
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
