package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var (
	errExpired = errors.New("expired")
	errEnded   = errors.New("ended")
)

func start(parent context.Context, ttl time.Duration) *lease.Context {
	return lease.NewContext(parent, time.Now().Add(ttl), errExpired)
}

func wantCause(ctx context.Context, t *testing.T, want error) {
	t.Helper()
	select {
	case <-ctx.Done():
	default:
		t.Fatal("not done")
	}
	if ctx.Err() == nil || !errors.Is(context.Cause(ctx), want) {
		t.Fatalf("ended with %v because of %v, want %v", ctx.Err(), context.Cause(ctx), want)
	}
}

func TestEndsAtTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t.Context(), time.Second)
		child, cancel := context.WithCancel(c)
		defer cancel()
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if c.Err() != nil || child.Err() != nil {
			t.Fatalf("ended early: %v", c.Err())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		wantCause(c, t, errExpired)
		wantCause(child, t, errExpired)
		c.End(errEnded) // too late to change the cause
		wantCause(c, t, errExpired)
	})
}

// Err reads the clock, so that a lease is expired before its timer has fired.
func TestErrDoesNotDependOnATimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := lease.NewContext(t.Context(), time.Now(), errExpired)
		// The timer's goroutine cannot have run: this one has not blocked yet.
		if c.Err() == nil {
			t.Fatal("valid at its deadline")
		}
		wantCause(c, t, errExpired)
		c.End(errEnded)
	})
}

// A context that was not used before its deadline, and has no timer, ends at the deadline too.
func TestFirstUseAfterTheDeadline(t *testing.T) {
	for name, ended := range map[string]func(context.Context) bool{
		"Err":   func(ctx context.Context) bool { return ctx.Err() != nil },
		"Cause": func(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errExpired) },
		"Done": func(ctx context.Context) bool {
			select {
			case <-ctx.Done():
				return true
			default:
				return false
			}
		},
		"a child": func(ctx context.Context) bool {
			child, cancel := context.WithCancel(ctx)
			defer cancel()
			return errors.Is(context.Cause(child), errExpired)
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := start(t.Context(), time.Second)
			time.Sleep(time.Second)
			if !ended(c) {
				t.Errorf("%s does not report the end", name)
			}
			wantCause(c, t, errExpired)
			c.End(errEnded)
		})
	}
}

func TestExtend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t.Context(), time.Second)
		for range 5 {
			time.Sleep(900 * time.Millisecond)
			c.Extend(time.Now().Add(time.Second))
		}
		c.Extend(time.Now()) // never back
		if left := time.Until(c.ValidUntil()); left != time.Second || c.Err() != nil {
			t.Fatalf("%v left, %v", left, c.Err())
		}
		time.Sleep(time.Second)
		c.Extend(time.Now().Add(time.Second)) // an ended context is not revived
		synctest.Wait()
		wantCause(c, t, errExpired)
	})
}

func TestEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t.Context(), time.Second)
		c.End(errEnded)
		wantCause(c, t, errEnded)
		c.Extend(time.Now().Add(time.Hour))
		time.Sleep(2 * time.Second)
		wantCause(c, t, errEnded)
	})
}

func TestEndsWithItsParent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancelCause(t.Context())
		c := start(parent, time.Second)
		defer c.End(errEnded)
		cancel(errEnded)
		wantCause(c, t, errEnded)
	})
}

// The cause of a context that was not used before its end is what ended it first.
func TestFirstUseAfterTheEnd(t *testing.T) {
	parent, cancel := context.WithCancelCause(t.Context())
	c := start(parent, time.Hour)
	c.End(errEnded)
	cancel(errExpired)
	wantCause(c, t, errEnded)

	c = start(parent, time.Hour)
	c.End(errEnded) // after its parent's end
	wantCause(c, t, errExpired)
}
