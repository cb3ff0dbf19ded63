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
)

// A process that has a result replays it, and completes with it, however long Redis was
// unavailable: three leases here. The operation does not run again, even if that is allowed.
func TestACompletionOutlivesItsLease(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]guard.Option{"": nil, "with rerun": {guard.WithRerun()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := append(opts, guard.WithTTL(time.Second))
			server := redistest.Start(t)
			s := newStore(t, obedient(t, server.Addr(), 10), redisstore.WithTimeout(time.Second))
			g := newGuard(t, s, opts...)
			op := guard.Operation{Scope: "alice", Key: "k1", Fingerprint: []byte("tea")}
			other := op
			other.Fingerprint = []byte("coffee")
			replayed := func(g *guard.Guard) {
				t.Helper()
				if a, r, err := g.Begin(ctx(), op); a != nil || r == nil || r.Status != 201 || string(r.Data) != "charged" || r.Attempt != 1 {
					t.Fatalf("Begin: %+v, %+v, %v; want the result", a, r, err)
				}
				if _, _, err := g.Begin(ctx(), other); !errors.Is(err, guard.ErrMismatch) {
					t.Fatalf("Begin of another request: %v", err)
				}
			}
			attempt, _, err := g.Begin(ctx(), op)
			if err != nil {
				t.Fatal(err)
			}
			stopped(t, server)
			if err := attempt.Complete(ctx(), guard.Result{Status: 201, Data: []byte("charged")}); !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("Complete without Redis: %v", err)
			}
			for until := time.Now().Add(3 * time.Second); time.Now().Before(until); <-time.After(200 * time.Millisecond) {
				replayed(g)
			}
			goesOn(t, server)
			eventually(t, 2*time.Second, "the breaker closes", func() bool {
				a, r, err := g.Begin(ctx(), op)
				if a != nil || r == nil && !errors.Is(err, store.ErrUnavailable) {
					t.Fatalf("Begin: %+v, %+v, %v; want the result", a, r, err)
				}
				return err == nil
			})
			replayed(g)
			if err := s.Shutdown(ctx()); err != nil {
				t.Fatal(err)
			}
			replayed(newGuard(t, newStore(t, obedient(t, server.Addr(), 10)), opts...))
		})
	}
}

// stopped stops a server as a machine that is suspended stops.
func stopped(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Process().Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Process().Signal(syscall.SIGCONT) })
}

func goesOn(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Process().Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
}
