package rpctest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// crowd has interceptors, what counts the calls that wait for the thing 1, and what releases it.
type crowd struct {
	chain   Interceptor
	waiting func() int
	let     func()
}

// crowds build interceptors whose thing 1 is held, and at most so many calls wait for.
var crowds = []func(t *rig, most int) crowd{
	func(t *rig, most int) crowd {
		l := NewLocker(t, newStore(t))
		lease := must(l.Lock(t.Context(), "1"))
		return crowd{t.Exclusive(l, t.ByField("id"), policy.Wait(time.Minute), policy.MaxWaiting(most)), func() int {
			var held *lock.HeldError
			_, err := l.TryLock(t.Context(), "1")
			errors.As(err, &held)
			return held.Waiting
		}, func() { _ = lease.Unlock(t.Context()) }}
	},
	func(t *rig, most int) crowd {
		s := NewSemaphore(t, newStore(t), 1, semaphore.WithMaxWaiting(most))
		permit := must(s.Acquire(t.Context(), "1"))
		return crowd{t.Concurrency(s, t.ByField("id"), policy.Wait(time.Minute)), func() int {
			var busy *semaphore.BusyError
			_, err := s.TryAcquire(t.Context(), "1")
			errors.As(err, &busy)
			return busy.Waiting
		}, func() { _ = permit.Release(t.Context()) }}
	},
}

func reaches(t *rig, waiting func() int, want int) {
	t.Helper()
	testpace.Eventually(t, patience, fmt.Sprintf("%d wait", want), func() bool { return waiting() == want })
}

func aCanceledCallLeavesTheQueue(t *rig) {
	for _, build := range crowds {
		for _, isGuarded := range []bool{false, true} {
			var s Service
			w := build(t, 1024)
			chain := []Interceptor{w.chain}
			if isGuarded {
				chain = append([]Interceptor{t.Idempotency(NewGuard(t, newStore(t)), byUser(t))}, chain...)
			}
			client := serve(t, &s, chain...)
			ctx, leave := context.WithCancel(t.Context())
			var left sync.WaitGroup
			for n := range 20 {
				left.Go(func() {
					_, _ = client.Make(t.Sending(ctx, "x-user", "u", "idempotency-key", fmt.Sprint(n)), &Request{ID: "1"})
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

func maximumOfWaiters(t *rig) {
	for _, build := range crowds {
		var s Service
		w := build(t, 3)
		client := serve(t, &s, w.chain)
		answers := make(chan error, 20)
		for range cap(answers) {
			go func() {
				_, err := client.Make(t.Context(), &Request{ID: "1"})
				answers <- err
			}()
		}
		for range cap(answers) - 3 {
			if err := <-answers; t.CodeOf(err) != Aborted && t.CodeOf(err) != ResourceExhausted {
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
