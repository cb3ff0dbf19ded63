package lock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestNewRefuses(t *testing.T) {
	store := memstore.New()
	l := newLocker(t, store)
	with := func(opts ...lock.Option) func() (*lock.Locker, error) {
		return func() (*lock.Locker, error) { return lock.New(store, "l", opts...) }
	}
	for name, build := range map[string]func() (*lock.Locker, error){
		"nil store":         func() (*lock.Locker, error) { return lock.New(nil, "l") },
		"typed nil store":   func() (*lock.Locker, error) { return lock.New((*memstore.Store)(nil), "l") },
		"no name":           func() (*lock.Locker, error) { return lock.New(store, "") },
		"odd name":          func() (*lock.Locker, error) { return lock.New(store, "a\nb") },
		"long name":         func() (*lock.Locker, error) { return lock.New(store, strings.Repeat("n", 1025)) },
		"short lease":       with(lock.WithTTL(10*time.Millisecond - 1)),
		"long lease":        with(lock.WithTTL(24*time.Hour + 1)),
		"negative hold":     with(lock.WithMaxHold(-1)),
		"unitless hold":     with(lock.WithMaxHold(30)),
		"unitless delay":    with(lock.WithLockDelay(5)),
		"negative delay":    with(lock.WithLockDelay(-1)),
		"long delay":        with(lock.WithLockDelay(time.Hour + 1)),
		"long holder":       with(lock.WithHolder(strings.Repeat("h", 257))),
		"a variant's lease": func() (*lock.Locker, error) { return l.With(lock.WithTTL(0)) },
		"a variant's log":   func() (*lock.Locker, error) { return l.With(lock.WithLogger(slog.Default())) },
		"a variant's meter": func() (*lock.Locker, error) { return l.With(lock.WithMeterProvider(nil)) },
		"a variant's spans": func() (*lock.Locker, error) { return l.With(lock.WithTracerProvider(nil)) },
	} {
		if l, err := build(); l != nil || err == nil || !strings.HasPrefix(err.Error(), "lock: ") {
			t.Errorf("%s: %v, %v", name, l, err)
		}
	}
}

func TestBadKeysAreNotSent(t *testing.T) {
	w := newWiretap()
	l := newLocker(t, w)
	for name, key := range map[string]string{"empty": "", "1,025 bytes": strings.Repeat("k", 1025)} {
		for call, f := range map[string]func(context.Context, string) (*lock.Lease, error){
			"Lock": l.Lock, "TryLock": l.TryLock, "RLock": l.RLock, "TryRLock": l.TryRLock,
		} {
			if _, err := f(t.Context(), key); !errors.Is(err, lock.ErrInvalidKey) {
				t.Errorf("%s, %s: %v", call, name, err)
			}
		}
		if _, err := l.LockAll(t.Context(), []string{"k", key}); !errors.Is(err, lock.ErrInvalidKey) {
			t.Errorf("LockAll, %s: %v", name, err)
		}
		if _, err := l.Inspect(t.Context(), key); !errors.Is(err, lock.ErrInvalidKey) {
			t.Errorf("Inspect, %s: %v", name, err)
		}
		if _, err := l.ForceUnlock(t.Context(), key, 1); !errors.Is(err, lock.ErrInvalidKey) {
			t.Errorf("ForceUnlock, %s: %v", name, err)
		}
	}
	if _, err := l.LockAll(t.Context(), nil); !errors.Is(err, lock.ErrInvalidKey) {
		t.Errorf("LockAll without keys: %v", err)
	}
	if n := w.Calls(storetest.AcquireLease); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	mustUnlock(t, mustLock(t, l, strings.Repeat("k", 1024)))
}

func TestDo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		failure := errors.New("failure")
		if err := l.Do(t.Context(), "k", func(ctx context.Context) error {
			if lease, ok := lock.FromContext(ctx); !ok || lease.Key() != "k" {
				t.Errorf("the lease in the context: %v, %v", lease, ok)
			}
			return failure
		}); !errors.Is(err, failure) {
			t.Errorf("Do: %v", err)
		}
		wantFree(t, w, "k")
		if err := l.Do(t.Context(), "k", func(ctx context.Context) error {
			lease, _ := lock.FromContext(ctx)
			_, err := l.ForceUnlock(t.Context(), "k", lease.Fence().Number)
			<-ctx.Done()
			return err
		}); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Do without the lock at its end: %v", err)
		}
		func() {
			defer func() {
				if recover() != "panic" {
					t.Error("Do did not panic")
				}
			}()
			_ = l.Do(t.Context(), "k", func(context.Context) error { panic("panic") })
		}()
		wantFree(t, w, "k")
		lease := mustLock(t, l, "k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.Do(ctx, "k", func(context.Context) error { t.Error("ran without the lock"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("Do: %v", err)
		}
		mustUnlock(t, lease)
	})
}

func TestClose(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		l := newLocker(t, w)
		lease, shared := mustLock(t, l, "k"), mustLock(t, l, "other")
		inProcess := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		foreign := mustLock(t, newLocker(t, w), "third")
		inStore := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "third") })
		reader := start(func() (*lock.Lease, error) { return l.RLock(t.Context(), "third") })
		for _, held := range []*lock.Lease{lease, shared} {
			context.AfterFunc(held.Context(), func() { mustUnlock(t, held) })
		}
		ok(t, l.Close())
		for name, p := range map[string]*pending{"in the process": inProcess, "in the store": inStore, "reader": reader} {
			if !p.returned() || !errors.Is(p.err, lock.ErrClosed) {
				t.Errorf("%s: %v", name, p.err)
			}
		}
		wantEnded(t, lease, lock.ErrClosed)
		wantEnded(t, shared, lock.ErrClosed)
		wantValid(t, foreign)
		mustUnlock(t, foreign)
		for _, key := range []string{"k", "other", "third"} {
			wantFree(t, w, key)
		}
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, lock.ErrClosed) {
			t.Errorf("Lock: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("Close again: %v", err)
		}
	})
}
