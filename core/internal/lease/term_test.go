package lease_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
)

func begin(parent context.Context, t *lease.Term, longest time.Duration) *lease.Context {
	c := new(lease.Context)
	t.Begin(parent, c, longest, errExpired)
	return c
}

func newTerm(ttl time.Duration) *lease.Term {
	t := new(lease.Term)
	t.Init(time.Now().Add(ttl))
	return t
}

func TestExtendTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerm(time.Second)
		ctx := begin(t.Context(), term, 0)
		defer term.End(nil)
		time.Sleep(time.Second - 1)
		term.Extend(time.Now().Add(-time.Minute)) // a late reply
		if !term.Valid() || !term.Due() || term.Remaining() != 1 {
			t.Errorf("valid %v, due %v, for %v", term.Valid(), term.Due(), term.Remaining())
		}
		term.Extend(time.Now().Add(time.Second))
		time.Sleep(time.Second - 1)
		if ctx.Err() != nil {
			t.Error("ended though it was extended")
		}
		time.Sleep(time.Nanosecond)
		wantCause(ctx, t, errExpired)
		term.Extend(time.Now().Add(time.Second))
		if term.Valid() || term.Due() || term.Remaining() != 0 {
			t.Error("valid after its end")
		}
	})
}

// A term whose context has reached its longest time is not renewed.
func TestLongestTimeOfAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerm(time.Minute)
		ctx := begin(t.Context(), term, time.Second)
		defer term.End(nil)
		term.Extend(time.Now().Add(time.Hour))
		time.Sleep(time.Second)
		wantCause(ctx, t, errExpired)
		if !term.Valid() || term.Due() {
			t.Errorf("valid %v, due %v", term.Valid(), term.Due())
		}
		term.Detach()
		next := begin(t.Context(), term, 0)
		if next.Err() != nil || !term.Due() {
			t.Error("the next context does not have the whole term")
		}
	})
}

func TestEndTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerm(time.Minute)
		first := begin(t.Context(), term, 0)
		term.Detach()
		second := begin(t.Context(), term, 0)
		term.End(errEnded)
		term.End(errExpired)
		wantCause(second, t, errEnded)
		wantCause(begin(t.Context(), term, 0), t, errEnded)
		if first.Err() != nil {
			t.Error("a context that was detached has ended")
		}
		first.End(context.Canceled)
		if term.Valid() || term.Due() {
			t.Error("valid after its end")
		}
	})
}

// Contexts within a term end with it, whatever their parents are, until they leave it.
func TestEnterTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		term := newTerm(time.Second)
		parent, cancel := context.WithCancel(t.Context())
		first := begin(parent, term, time.Minute)
		cancel()
		wantCause(first, t, context.Canceled)
		var entered [4]lease.Context
		for i := range entered {
			if err := term.Enter(context.WithoutCancel(first), &entered[i], errExpired); err != nil {
				t.Fatal(err)
			}
		}
		for _, i := range []int{1, 3} { // one between others, and the last
			term.Leave(&entered[i], errEnded)
			wantCause(&entered[i], t, errEnded)
		}
		time.Sleep(time.Second - 1)
		term.Extend(time.Now().Add(time.Hour))
		time.Sleep(time.Minute - time.Second)
		for _, i := range []int{0, 2} {
			if entered[i].Err() != nil {
				t.Errorf("context %d has ended: %v", i, context.Cause(&entered[i]))
			}
		}
		time.Sleep(time.Nanosecond)
		time.Sleep(time.Second)
		for _, i := range []int{0, 2} {
			wantCause(&entered[i], t, errExpired)
		}
		if err := term.Enter(t.Context(), new(lease.Context), errExpired); err != errExpired {
			t.Errorf("entered after the longest time of its contexts: %v", err)
		}
		term.End(errEnded)
		if err := term.Enter(t.Context(), new(lease.Context), errExpired); err != errEnded {
			t.Errorf("entered after its end: %v", err)
		}
	})
}
