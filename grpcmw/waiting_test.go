package grpcmw_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/internal/rpctest/things"
)

// waits says how many wait for the thing 1.
type waits struct {
	chain   grpcmw.Interceptors
	waiting func() int
	let     func()
}

// waiters build interceptors whose thing 1 others have.
var waiters = map[string]func(t *testing.T, opts ...policy.WaitOption) waits{
	"exclusive": func(t *testing.T, opts ...policy.WaitOption) waits {
		l := newLocker(t, newStore(t))
		lease := must(l.Lock(t.Context(), "1"))
		var all []policy.ExclusiveOption
		for _, o := range opts {
			all = append(all, o)
		}
		return waits{exclusive.New(l, byID, all...), func() int {
			var held *lock.HeldError
			_, err := l.TryLock(t.Context(), "1")
			errors.As(err, &held)
			return held.Waiting
		}, func() { _ = lease.Unlock(t.Context()) }}
	},
	"concurrency": func(t *testing.T, opts ...policy.WaitOption) waits {
		s := newSemaphore(t, newStore(t), 1)
		permit := must(s.Acquire(t.Context(), "1"))
		var all []policy.ConcurrencyOption
		for _, o := range opts {
			all = append(all, o)
		}
		return waits{concurrency.New(s, byID, all...), func() int {
			var busy *semaphore.BusyError
			_, err := s.TryAcquire(t.Context(), "1")
			errors.As(err, &busy)
			return busy.Waiting
		}, func() { _ = permit.Release(t.Context()) }}
	},
}

func reaches(t *testing.T, waiting func() int, want int) {
	t.Helper()
	for deadline := time.Now().Add(patience); waiting() != want; {
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d", waiting(), want)
		}
	}
}

func TestAClientThatLeavesWaitsNoLonger(t *testing.T) {
	for _, build := range waiters {
		for _, isGuarded := range []bool{false, true} {
			var s service
			w := build(t, policy.Wait(time.Minute))
			chain := []grpcmw.Interceptors{w.chain}
			if isGuarded {
				chain = append([]grpcmw.Interceptors{idempotency.New(newGuard(t, newStore(t)), byUser)}, chain...)
			}
			client := serve(t, &s, chain...)
			ctx, leave := context.WithCancel(t.Context())
			var left sync.WaitGroup
			for n := range 20 {
				left.Go(func() {
					_, _ = client.Make(metadata.AppendToOutgoingContext(ctx, "x-user", "u", "idempotency-key", fmt.Sprint(n)), &things.MakeRequest{Id: "1"})
				})
			}
			reaches(t, w.waiting, 20)
			leave()
			left.Wait()
			reaches(t, w.waiting, 0)
			w.let()
			s.ran(t, 0)
		}
	}
}

func TestAsManyWaitAsMay(t *testing.T) {
	for _, build := range waiters {
		var s service
		w := build(t, policy.Wait(time.Minute), policy.MaxWaiting(3))
		client := serve(t, &s, w.chain)
		answers := make(chan error, 20)
		for range cap(answers) {
			go func() {
				_, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"})
				answers <- err
			}()
		}
		for range cap(answers) - 3 {
			if err := <-answers; status.Code(err) != codes.Aborted && status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%v", err)
			}
		}
		reaches(t, w.waiting, 3)
		w.let()
		for range 3 {
			if err := <-answers; err != nil {
				t.Error(err)
			}
		}
		s.ran(t, 3)
	}
}
