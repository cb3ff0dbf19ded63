package semaphore_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestNewRefuses(t *testing.T) {
	st := memstore.New()
	s := newSemaphore(t, st, 1)
	with := func(opts ...semaphore.Option) func() (*semaphore.Semaphore, error) {
		return func() (*semaphore.Semaphore, error) { return semaphore.New(st, "s", 1, opts...) }
	}
	named := func(name string) func() (*semaphore.Semaphore, error) {
		return func() (*semaphore.Semaphore, error) { return semaphore.New(st, name, 1) }
	}
	for name, build := range map[string]func() (*semaphore.Semaphore, error){
		"nil store":         func() (*semaphore.Semaphore, error) { return semaphore.New(nil, "s", 1) },
		"typed nil store":   func() (*semaphore.Semaphore, error) { return semaphore.New((*memstore.Store)(nil), "s", 1) },
		"no name":           named(""),
		"odd name":          named("a\nb"),
		"long name":         named(strings.Repeat("n", 129)),
		"short lease":       with(semaphore.WithTTL(10*time.Millisecond - 1)),
		"long lease":        with(semaphore.WithTTL(24*time.Hour + 1)),
		"negative hold":     with(semaphore.WithMaxHold(-1)),
		"unitless hold":     with(semaphore.WithMaxHold(30)),
		"long holder":       with(semaphore.WithHolder(strings.Repeat("h", 257))),
		"negative queue":    with(semaphore.WithMaxWaiting(-1)),
		"a variant's lease": func() (*semaphore.Semaphore, error) { return s.With(semaphore.WithTTL(0)) },
		"a variant's log":   func() (*semaphore.Semaphore, error) { return s.With(semaphore.WithLogger(slog.Default())) },
		"a variant's meter": func() (*semaphore.Semaphore, error) { return s.With(semaphore.WithMeterProvider(nil)) },
		"a variant's spans": func() (*semaphore.Semaphore, error) { return s.With(semaphore.WithTracerProvider(nil)) },
	} {
		if s, err := build(); s != nil || err == nil || !strings.HasPrefix(err.Error(), "semaphore: ") {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	for _, capacity := range []int{0, -1, math.MinInt, store.MaxCapacity + 1} {
		if s, err := semaphore.New(st, "s", capacity); s != nil || !errors.Is(err, semaphore.ErrInvalidCapacity) {
			t.Errorf("capacity %d: %v, %v", capacity, s, err)
		}
		if err := s.SetCapacity(capacity); !errors.Is(err, semaphore.ErrInvalidCapacity) {
			t.Errorf("SetCapacity(%d): %v", capacity, err)
		}
	}
	if n, err := s.Capacity("k"); n != 1 || err != nil {
		t.Errorf("the capacity is %d, %v after it was refused", n, err)
	}
}

func TestInvalidRequestsAreNotSent(t *testing.T) {
	w := newWiretap()
	s := newSemaphore(t, w, 3)
	calls := map[string]func(ctx context.Context, key string, n int) (*semaphore.Permit, error){
		"AcquireN": s.AcquireN, "TryAcquireN": s.TryAcquireN,
	}
	for name, key := range map[string]string{"empty": "", "1,025 bytes": strings.Repeat("k", 1025)} {
		for call, f := range calls {
			if p, err := f(t.Context(), key, 1); p != nil || !errors.Is(err, semaphore.ErrInvalidKey) {
				t.Errorf("%s, %s: %v", call, name, err)
			}
		}
		if _, err := s.Inspect(t.Context(), key); !errors.Is(err, semaphore.ErrInvalidKey) {
			t.Errorf("Inspect, %s: %v", name, err)
		}
		if _, err := s.Capacity(key); !errors.Is(err, semaphore.ErrInvalidKey) {
			t.Errorf("Capacity, %s: %v", name, err)
		}
	}
	for _, n := range []int{0, -1, math.MinInt, 4, math.MaxInt} {
		for call, f := range calls {
			if p, err := f(t.Context(), "k", n); p != nil || !errors.Is(err, semaphore.ErrInvalidWeight) {
				t.Errorf("%s, weight %d: %v", call, n, err)
			}
		}
	}
	if n := w.Calls(storetest.AcquireLease); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	mustRelease(t, must(s.AcquireN(t.Context(), strings.Repeat("k", 1024), 3)))
}

func TestDo(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 1)
		failure := errors.New("failure")
		if err := s.Do(t.Context(), "k", func(ctx context.Context) error {
			if p, ok := semaphore.FromContext(ctx); !ok || p.Key() != "k" || p.Weight() != 1 {
				t.Errorf("the permit in the context: %v, %v", p, ok)
			}
			return failure
		}); !errors.Is(err, failure) {
			t.Errorf("Do: %v", err)
		}
		wantState(t, s, 0, 0)
		if err := s.Do(t.Context(), "k", func(ctx context.Context) error {
			w.lose(t)
			<-ctx.Done()
			return nil
		}); !errors.Is(err, semaphore.ErrLost) {
			t.Errorf("Do without the permit at its end: %v", err)
		}
		func() {
			defer func() {
				if recover() != "panic" {
					t.Error("Do did not panic")
				}
			}()
			_ = s.Do(t.Context(), "k", func(context.Context) error { panic("panic") })
		}()
		wantState(t, s, 0, 0)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Do(ctx, "k", func(context.Context) error { t.Error("ran without a permit"); return nil }); !errors.Is(err, context.Canceled) {
			t.Errorf("Do: %v", err)
		}
	})
}

func TestClose(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 2)
		variant := must(s.With(semaphore.WithHolder("variant")))
		one, two := mustAcquire(t, s, 1), mustAcquire(t, variant, 1)
		waiter, large := start(t.Context(), variant, 1), start(t.Context(), s, 2)
		for _, p := range []*semaphore.Permit{one, two} {
			context.AfterFunc(p.Context(), func() { mustRelease(t, p) })
		}
		ok(t, variant.Close())
		for _, p := range []*pending{waiter, large} {
			if !p.returned() || !errors.Is(p.err, semaphore.ErrClosed) {
				t.Errorf("a waiter: %v", p.err)
			}
		}
		wantEnded(t, one, semaphore.ErrClosed)
		wantEnded(t, two, semaphore.ErrClosed)
		wantState(t, s, 0, 0)
		for name, err := range map[string]error{"Close again": s.Close(), "SetCapacity": s.SetCapacity(3)} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, p := range []*semaphore.Permit{one, two} {
			if err := p.Release(t.Context()); !errors.Is(err, semaphore.ErrReleased) {
				t.Errorf("Release: %v", err)
			}
			p.ReleaseAsync()
		}
		if _, err := s.TryAcquire(t.Context(), "k"); !errors.Is(err, semaphore.ErrClosed) {
			t.Errorf("TryAcquire: %v", err)
		}
	})
}

func TestCloseWithoutReplies(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 200)
		for range 150 {
			releaseAtEnd(mustAcquire(t, s, 1))
		}
		w.Hook(storetest.Failing(errDown, storetest.ReleaseLeases), nil)
		began := time.Now()
		if err := s.Close(); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 5*time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(began))
		}
		w.Hook(nil, nil)
		time.Sleep(2 * time.Second) // the releases are retried
		wantState(t, s, 0, 0)

		closed := newSemaphore(t, w, 200)
		permit := mustAcquire(t, closed, 1)
		w.Hook(storetest.Failing(memstoreClosed(), storetest.ReleaseLeases), nil)
		if err := permit.Release(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("Release with a closed store: %v", err)
		}
		w.Hook(nil, nil)
	})
}

// releaseAtEnd releases a permit when its context ends.
func releaseAtEnd(p *semaphore.Permit) {
	context.AfterFunc(p.Context(), func() { _ = p.Release(context.Background()) })
}

// memstoreClosed returns the error of a store that was closed.
func memstoreClosed() error {
	st := memstore.New()
	_ = st.Close()
	return st.Ping(context.Background())
}

func TestStoreShutdownWaitsForPermits(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 250)
		permits := make([]*semaphore.Permit, 250)
		for i := range permits {
			permits[i] = mustAcquire(t, s, 1)
			context.AfterFunc(permits[i].Context(), permits[i].ReleaseAsync)
		}
		next := start(t.Context(), s, 250)
		ok(t, w.Shutdown(t.Context()))
		for _, p := range permits {
			wantEnded(t, p, semaphore.ErrClosed)
		}
		if !next.returned() || !errors.Is(next.err, semaphore.ErrClosed) {
			t.Fatalf("the next: %v", next.err)
		}
		wantState(t, s, 0, 0)
	})
}

func TestList(t *testing.T) {
	inBubble(t, func(t *testing.T, w *wiretap) {
		s := newSemaphore(t, w, 5, semaphore.WithHolder("me"))
		var permits []*semaphore.Permit
		for key, n := range map[string]int{"a": 1, "b": 2, "c": 5} {
			permits = append(permits, must(s.AcquireN(t.Context(), key, n)))
		}
		found := map[string]int{}
		for state, err := range s.List(t.Context()) {
			if err != nil || len(state.Holders) != 1 || state.Holders[0].Label != "me" || state.Holders[0].Weight != state.InUse {
				t.Errorf("%+v, %v", state, err)
			}
			found[state.Key] = state.InUse
		}
		if len(found) != 3 || found["a"] != 1 || found["b"] != 2 || found["c"] != 5 {
			t.Errorf("found %v", found)
		}
		for _, err := range s.List(t.Context()) {
			if err != nil {
				t.Error(err)
			}
			break
		}
		mustRelease(t, permits...)
		for state, err := range s.List(t.Context()) {
			t.Errorf("%+v, %v is left", state, err)
		}
	})
}
