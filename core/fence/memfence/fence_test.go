package memfence_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// Of two requests for the same file, the first arrives after its sender has lost the lock.
func Example() {
	files, err := memfence.New()
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	paused, next := fence.Token{Number: 33}, fence.Token{Number: 34} // of two leases
	fmt.Println("the next holder:", files.Check(ctx, "report.pdf", next))
	err = files.Check(ctx, "report.pdf", paused)
	fmt.Println("the paused one is stale:", errors.Is(err, fence.ErrStale))
	fmt.Println("another file:", files.Check(ctx, "notes.txt", paused))
	// Output:
	// the next holder: <nil>
	// the paused one is stale: true
	// another file: <nil>
}

func newFence(t testing.TB, opts ...memfence.Option) *memfence.Fence {
	t.Helper()
	f := must(memfence.New(opts...))
	return f
}

func exclusive(n int64) fence.Token { return fence.Token{Number: n} }

func shared(n int64) fence.Token { return fence.Token{Number: n, Shared: true} }

// wantCheck checks the result for a token: nil, or an error that matches.
func wantCheck(t *testing.T, f *memfence.Fence, key string, token fence.Token, want error) {
	t.Helper()
	err := f.Check(t.Context(), key, token)
	if !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%q, %v: %v; want %v", key, token, err, want)
	}
}

// Every key has its own mark, with the rule of fence.Mark.
func TestRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := must(memfence.New())
		marks := make(map[string]fence.Mark)
		for range rapid.IntRange(1, 30).Draw(t, "checks") {
			key := rapid.SampledFrom([]string{"a", "b", "{a}"}).Draw(t, "key")
			token := fence.Token{Number: rapid.Int64Range(-1, 12).Draw(t, "number"), Shared: rapid.Bool().Draw(t, "shared")}
			next, want := marks[key].Admit(token)
			if err := f.Check(context.Background(), key, token); fmt.Sprint(err) != fmt.Sprint(want) {
				t.Fatalf("at a mark of %d, %v: %v; want %v", marks[key], token, err, want)
			}
			marks[key] = next
		}
	})
}

func TestRefusedCalls(t *testing.T) {
	f := newFence(t)
	longest := strings.Repeat("k", 1024)
	wantCheck(t, f, "", exclusive(1), fence.ErrInvalidKey)
	wantCheck(t, f, longest+"k", exclusive(1), fence.ErrInvalidKey)
	wantCheck(t, f, longest, exclusive(1), nil)
	wantCheck(t, f, "key", fence.Token{}, fence.ErrInvalid)
	wantCheck(t, f, "key", shared(-1), fence.ErrInvalid)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Check(ended, "key", exclusive(9)); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("an ended context: %v", err)
	}
	wantCheck(t, f, "key", exclusive(1), nil) // none has set a mark
}

// A mark lives from the last call for its key, refused or not.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFence(t, memfence.WithTTL(time.Minute))
		wantCheck(t, f, "key", exclusive(5), nil)
		for _, c := range []struct {
			token fence.Token
			err   error
		}{{exclusive(5), nil}, {exclusive(4), fence.ErrStale}, {shared(6), nil}, {shared(4), fence.ErrStale}, {exclusive(4), fence.ErrStale}} {
			time.Sleep(time.Minute - 1)
			wantCheck(t, f, "key", c.token, c.err)
		}
		time.Sleep(time.Minute)
		wantCheck(t, f, "key", exclusive(1), nil)
		wantCheck(t, f, "key", exclusive(2), nil)
		wantCheck(t, f, "key", exclusive(1), fence.ErrStale)
	})
}

func TestDefaultTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFence(t)
		wantCheck(t, f, "key", exclusive(5), nil)
		time.Sleep(24*time.Hour - 1)
		wantCheck(t, f, "key", exclusive(4), fence.ErrStale)
		time.Sleep(24 * time.Hour)
		wantCheck(t, f, "key", exclusive(4), nil)
	})
}

// A full fence refuses keys without a mark, and keeps all marks.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFence(t, memfence.WithTTL(time.Minute), memfence.WithMaxMarks(2))
		wantCheck(t, f, "a", exclusive(5), nil)
		time.Sleep(time.Second)
		wantCheck(t, f, "b", exclusive(5), nil)
		wantCheck(t, f, "c", exclusive(5), store.ErrFull)
		wantCheck(t, f, "c", exclusive(5), store.ErrUnavailable)
		wantCheck(t, f, "c", shared(5), nil) // it needs no room
		wantCheck(t, f, "a", exclusive(6), nil)
		wantCheck(t, f, "a", exclusive(5), fence.ErrStale)
		wantCheck(t, f, "b", exclusive(4), fence.ErrStale)

		time.Sleep(time.Minute - time.Second)
		wantCheck(t, f, "a", exclusive(6), nil) // kept; b is older by now
		time.Sleep(time.Second)
		wantCheck(t, f, "c", exclusive(1), nil)
		wantCheck(t, f, "b", exclusive(1), store.ErrFull)
		wantCheck(t, f, "a", exclusive(5), fence.ErrStale)
	})
}

func TestConcurrentChecks(t *testing.T) {
	f := newFence(t)
	var (
		wg   sync.WaitGroup
		most [3]int64
	)
	for range 300 {
		i, n := rand.IntN(len(most)), rand.Int64N(1000)+1
		most[i] = max(most[i], n)
		wg.Go(func() {
			key := fmt.Sprint("key-", i)
			err := f.Check(context.Background(), key, exclusive(n))
			switch {
			case err == nil: // keeps out smaller ones
				if err := f.Check(context.Background(), key, shared(n-1)); n > 1 && !errors.Is(err, fence.ErrStale) {
					t.Errorf("%d passed after %d had: %v", n-1, n, err)
				}
			case !errors.Is(err, fence.ErrStale):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, n := range most {
		key := fmt.Sprint("key-", i)
		if n > 1 {
			wantCheck(t, f, key, exclusive(n-1), fence.ErrStale)
		}
		if n > 0 {
			wantCheck(t, f, key, exclusive(n), nil)
		}
	}
}

func TestNew(t *testing.T) {
	for name, opt := range map[string]memfence.Option{
		"no time":            memfence.WithTTL(0),
		"less than a second": memfence.WithTTL(time.Second - 1),
		"for too long":       memfence.WithTTL(366*24*time.Hour + 1),
		"no marks":           memfence.WithMaxMarks(0),
		"a negative number":  memfence.WithMaxMarks(-1),
	} {
		if f, err := memfence.New(opt); err == nil || f != nil || !strings.HasPrefix(err.Error(), "memfence: New: ") {
			t.Errorf("%s: %v, %v", name, f, err)
		}
	}
	if _, err := memfence.New(nil, memfence.WithTTL(time.Second), memfence.WithMaxMarks(1)); err != nil {
		t.Errorf("the smallest settings: %v", err)
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
