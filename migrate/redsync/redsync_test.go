package redsync_test

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/migrate/redsync"
)

func TestMain(m *testing.M) { leaktest.Main(m, redistest.Redialing) }

func newLocker(t *testing.T, st store.Leases, opts ...lock.Option) *lock.Locker {
	t.Helper()
	l, err := lock.New(st, "jobs", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func onRedis(t *testing.T, server *redistest.Server) *redisstore.Store {
	t.Helper()
	st, err := redisstore.New(server.Client(), redisstore.WithTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// expect checks what the methods that report and fail return.
func expect(t *testing.T, what string, want bool, wantErr error) func(bool, error) {
	return func(got bool, err error) {
		t.Helper()
		if got != want || !errors.Is(err, wantErr) {
			t.Errorf("%s = %t, %v; want %t, %v", what, got, err, want, wantErr)
		}
	}
}

func isTaken(err error) bool {
	var taken *redsync.ErrTaken
	return errors.As(err, &taken) && errors.Is(err, redsync.ErrFailed) && errors.Is(err, lock.ErrNotAcquired) &&
		!errors.Is(err, context.Canceled)
}

func TestMutex(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	rs, others := redsync.New(newLocker(t, onRedis(t, server))), redsync.New(newLocker(t, onRedis(t, server)))
	mine, theirs := rs.NewMutex("report"), others.NewMutex("report", redsync.WithTries(2), redsync.WithRetryDelay(300*time.Millisecond)) // enough for a reply

	expect(t, "Unlock before Lock", false, redsync.ErrLockAlreadyExpired)(mine.Unlock())
	expect(t, "Extend before Lock", false, redsync.ErrExtendFailed)(mine.Extend())
	expect(t, "Valid before Lock", false, redsync.ErrLockAlreadyExpired)(mine.Valid())
	if !mine.Until().IsZero() || mine.Lease() != nil || mine.Name() != "report" {
		t.Errorf("before Lock: until %v, lease %v, name %q", mine.Until(), mine.Lease(), mine.Name())
	}

	if err := mine.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := theirs.TryLock(); !isTaken(err) {
		t.Errorf("TryLock of a held lock: %v", err)
	}
	err := theirs.Lock()
	var held *lock.HeldError
	if !isTaken(err) || !errors.As(err, &held) || held.Holder == "" {
		t.Errorf("Lock of a held lock: %v, %+v", err, held)
	}
	if err := mine.TryLock(); !isTaken(err) {
		t.Errorf("TryLock of a lock that the mutex holds itself: %v", err)
	}
	expect(t, "Extend", true, nil)(mine.Extend())
	expect(t, "Valid", true, nil)(mine.Valid())
	expect(t, "Extend by another mutex", false, redsync.ErrExtendFailed)(theirs.Extend())
	expect(t, "Unlock by another mutex", false, redsync.ErrLockAlreadyExpired)(theirs.Unlock())
	if left := time.Until(mine.Until()); left <= 0 || left > 30*time.Second {
		t.Errorf("the lock is valid for %v", left)
	}
	first := mine.Lease().Fence().Number
	expect(t, "Unlock", true, nil)(mine.Unlock())
	expect(t, "Unlock after Unlock", false, redsync.ErrLockAlreadyExpired)(mine.Unlock())
	if !mine.Until().IsZero() || mine.Lease() != nil {
		t.Errorf("after Unlock: until %v, lease %v", mine.Until(), mine.Lease())
	}

	// The request of the Lock that has given up may still be on its way out of the queue.
	testpace.Eventually(t, 10*time.Second, "the lock is free", func() bool { return theirs.TryLock() == nil })
	if second := theirs.Lease().Fence().Number; second <= first {
		t.Errorf("the fence went from %d to %d", first, second)
	}
	expect(t, "Unlock", true, nil)(theirs.Unlock())
}

// A lock that an operator gives to others is lost.
func TestALostLock(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	locker := newLocker(t, onRedis(t, server))
	m := redsync.New(locker).NewMutex("report")
	if err := m.Lock(); err != nil {
		t.Fatal(err)
	}
	if ok, err := locker.ForceUnlock(t.Context(), "report", m.Lease().Fence().Number); !ok || err != nil {
		t.Fatal(ok, err)
	}
	expect(t, "Extend", false, lock.ErrLost)(m.Extend())
	expect(t, "Valid", false, lock.ErrLost)(m.Valid())
	if !m.Until().IsZero() {
		t.Errorf("a lost lock is valid until %v", m.Until())
	}
	expect(t, "Unlock", false, lock.ErrLost)(m.Unlock())
}

func TestAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	m := redsync.New(newLocker(t, onRedis(t, server))).NewMutex("report")
	if err := m.Lock(); err != nil {
		t.Fatal(err)
	}
	server.Stop()
	expect(t, "Extend", false, store.ErrUnavailable)(m.Extend())
	expect(t, "Valid", false, store.ErrUnavailable)(m.Valid())
	if m.Until().IsZero() {
		t.Error("the lock ended with the server")
	}
	expect(t, "Unlock", false, store.ErrUnavailable)(m.Unlock())
	if err := m.Lock(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Lock: %v", err)
	}
	server.Restart() // so that nothing waits for the release
}

// inMemory runs a test in a bubble of time, on a store in memory.
func inMemory(t *testing.T, test func(t *testing.T, locker *lock.Locker)) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		locker, err := lock.New(st, "jobs")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = locker.Close() }()
		test(t, locker)
	})
}

func TestLockWaitsForTheTriesOfRedsync(t *testing.T) {
	inMemory(t, func(t *testing.T, locker *lock.Locker) {
		rs := redsync.New(locker)
		if err := rs.NewMutex("k").Lock(); err != nil {
			t.Fatal(err)
		}
		for what, row := range map[string]struct {
			mutex *redsync.Mutex
			want  time.Duration
		}{
			"by default":    {rs.NewMutex("k"), 31 * 150 * time.Millisecond},
			"three tries":   {rs.NewMutex("k", redsync.WithTries(3), redsync.WithRetryDelay(time.Second)), 2 * time.Second},
			"one try":       {rs.NewMutex("k", redsync.WithTries(1)), 0},
			"without pause": {rs.NewMutex("k", redsync.WithRetryDelay(0)), 0},
		} {
			began := time.Now()
			if err := row.mutex.Lock(); !isTaken(err) {
				t.Errorf("%s: %v", what, err)
			}
			if took := time.Since(began); took != row.want {
				t.Errorf("%s: waited for %v, want %v", what, took, row.want)
			}
		}
	})
}

// More tries than time has nanoseconds wait until the context ends.
func TestLockWaitsForAsLongAsItsContext(t *testing.T) {
	inMemory(t, func(t *testing.T, locker *lock.Locker) {
		rs := redsync.New(locker)
		if err := rs.NewMutex("k").Lock(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := rs.NewMutex("k", redsync.WithTries(math.MaxInt)).LockContext(ctx)
		if !errors.Is(err, redsync.ErrFailed) || !errors.Is(err, context.DeadlineExceeded) || time.Until(deadline(ctx)) != 0 {
			t.Errorf("%v, %v before the deadline", err, time.Until(deadline(ctx)))
		}
		if err := rs.NewMutex("free").LockContext(ctx); !errors.Is(err, redsync.ErrFailed) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a context that has ended: %v", err)
		}
	})
}

func deadline(ctx context.Context) time.Time {
	at, _ := ctx.Deadline()
	return at
}

// Unlike the wait, the lock does not end with the context of LockContext, and is renewed.
func TestALockOutlivesItsContextAndItsExpiry(t *testing.T) {
	inMemory(t, func(t *testing.T, locker *lock.Locker) {
		m := redsync.New(locker).NewMutex("k", redsync.WithExpiry(time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		if err := m.LockContext(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Minute)
		expect(t, "Valid", true, nil)(m.Valid())
		expect(t, "Extend", true, nil)(m.Extend())
		if err := m.Lease().Context().Err(); err != nil {
			t.Error(err)
		}
		expect(t, "UnlockContext", true, nil)(m.UnlockContext(ctx))
	})
}

func TestWithoutRenewal(t *testing.T) {
	inMemory(t, func(t *testing.T, locker *lock.Locker) {
		rs := redsync.New(locker)
		m := rs.NewMutex("k", redsync.WithExpiry(time.Minute), redsync.WithoutRenewal())
		if err := m.Lock(); err != nil {
			t.Fatal(err)
		}
		expect(t, "Extend", false, redsync.ErrExtendFailed)(m.Extend())
		other := rs.NewMutex("k", redsync.WithExpiry(time.Minute), redsync.WithoutRenewal())
		time.Sleep(50 * time.Second)
		if err := other.TryLock(); !isTaken(err) {
			t.Errorf("within its expiry: %v", err)
		}
		time.Sleep(15 * time.Second)
		if err := other.TryLock(); err != nil {
			t.Errorf("after its expiry: %v", err)
		}
		expect(t, "Unlock after the expiry", false, redsync.ErrLockAlreadyExpired)(m.Unlock())
		expect(t, "Valid of the other", true, nil)(other.Valid())
	})
}

// Goroutines may share a mutex: the one that unlocks it releases the lock of the one that has it.
func TestASharedMutexExcludes(t *testing.T) {
	inMemory(t, func(t *testing.T, locker *lock.Locker) {
		m := redsync.New(locker).NewMutex("k", redsync.WithTries(math.MaxInt))
		var all sync.WaitGroup
		inside := 0
		for range 20 {
			all.Go(func() {
				if err := m.Lock(); err != nil {
					t.Error(err)
					return
				}
				inside++ // unguarded, for the race detector
				if inside != 1 {
					t.Errorf("%d inside", inside)
				}
				time.Sleep(time.Second)
				inside--
				expect(t, "Unlock", true, nil)(m.Unlock())
			})
		}
		all.Wait()
	})
}

func TestMistakesAreErrorsOfLock(t *testing.T) {
	inMemory(t, func(t *testing.T, locker *lock.Locker) {
		rs := redsync.New(locker)
		for what, m := range map[string]*redsync.Mutex{
			"no locker":          redsync.New(nil).NewMutex("k"),
			"no name":            rs.NewMutex(""),
			"no tries":           rs.NewMutex("k", redsync.WithTries(0)),
			"no expiry":          rs.NewMutex("k", redsync.WithExpiry(0)),
			"too long an expiry": rs.NewMutex("k", redsync.WithExpiry(25*time.Hour)),
		} {
			if err := m.Lock(); err == nil || isTaken(err) {
				t.Errorf("%s: Lock: %v", what, err)
			}
			if err := m.TryLock(); err == nil || isTaken(err) {
				t.Errorf("%s: TryLock: %v", what, err)
			}
			expect(t, what+": Unlock", false, redsync.ErrLockAlreadyExpired)(m.Unlock())
		}
		if err := rs.NewMutex("k", nil).Lock(); err != nil {
			t.Errorf("with a nil option: %v", err)
		}
	})
}
