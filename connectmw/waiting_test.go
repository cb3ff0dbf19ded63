package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// crowd has interceptors, what counts the calls that wait for the thing 1, and what releases it.
type crowd struct {
	chain   connect.Interceptor
	waiting func() int
	let     func()
}

// crowds build interceptors whose thing 1 is held, and at most so many calls wait for.
var crowds = []func(t *testing.T, most int) crowd{
	func(t *testing.T, most int) crowd {
		l := newLocker(t, newStore(t))
		lease := must(l.Lock(t.Context(), "1"))
		return crowd{exclusive.New(l, byID, policy.Wait(time.Minute), policy.MaxWaiting(most)), func() int {
			var held *lock.HeldError
			_, err := l.TryLock(t.Context(), "1")
			errors.As(err, &held)
			return held.Waiting
		}, func() { _ = lease.Unlock(t.Context()) }}
	},
	func(t *testing.T, most int) crowd {
		s := newSemaphore(t, newStore(t), 1, semaphore.WithMaxWaiting(most))
		permit := must(s.Acquire(t.Context(), "1"))
		return crowd{concurrency.New(s, byID, policy.Wait(time.Minute)), func() int {
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

func TestACanceledCallLeavesTheQueue(t *testing.T) {
	for _, build := range crowds {
		for _, isGuarded := range []bool{false, true} {
			var s service
			w := build(t, 1024)
			chain := []connect.Interceptor{w.chain}
			if isGuarded {
				chain = append([]connect.Interceptor{idempotency.New(newGuard(t, newStore(t)), byUser)}, chain...)
			}
			client := serve(t, &s, chain...)
			ctx, leave := context.WithCancel(t.Context())
			var left sync.WaitGroup
			for n := range 20 {
				left.Go(func() {
					_, _ = client.Make(sending(ctx, "x-user", "u", "idempotency-key", fmt.Sprint(n)), &things.MakeRequest{Id: "1"})
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

func TestMaximumOfWaiters(t *testing.T) {
	for _, build := range crowds {
		var s service
		w := build(t, 3)
		client := serve(t, &s, w.chain)
		answers := make(chan error, 20)
		for range cap(answers) {
			go func() {
				_, err := client.Make(t.Context(), &things.MakeRequest{Id: "1"})
				answers <- err
			}()
		}
		for range cap(answers) - 3 {
			if err := <-answers; codeOf(err) != connect.CodeAborted && codeOf(err) != connect.CodeResourceExhausted {
				t.Errorf("%v", err)
			}
		}
		reaches(t, w.waiting, 3)
		w.let()
		for range 3 {
			ok(t, <-answers)
		}
		s.ran(t, 3)
	}
}
