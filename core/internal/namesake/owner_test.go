package namesake_test

import (
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The register has a mechanism of each kind.
func TestOwners(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	is := func(mechanism any) func(any) bool { return func(owner any) bool { return owner == mechanism } }
	isPool := func(owner any) bool { p, ok := owner.(*lease.Pool); return ok && p.Name == "x" }
	for kind, build := range map[string]func() (mechanism any, isOwner func(any) bool){
		"rate_limit": func() (any, func(any) bool) {
			l := must(tokenbucket.New(st, "x", tokenbucket.PerDay(1)))
			return l, is(l)
		},
		"idempotency": func() (any, func(any) bool) { g := must(guard.New(st, "x")); return g, is(g) },
		"delay":       func() (any, func(any) bool) { q := must(delay.New(st, "x")); return q, is(q) },
		"lock":        func() (any, func(any) bool) { return must(lock.New(st, "x")), isPool },
		"semaphore":   func() (any, func(any) bool) { return must(semaphore.New(st, "x", 1)), isPool },
	} {
		if owner := namesake.Owner(st, kind, "x"); owner != nil {
			t.Errorf("%s: %T before there is one", kind, owner)
		}
		mechanism, isOwner := build()
		if owner := namesake.Owner(st, kind, "x"); !isOwner(owner) {
			t.Errorf("%s: the owner is a %T", kind, owner)
		}
		if owner := namesake.Owner(st, kind, "y"); owner != nil {
			t.Errorf("%s: %T has another name", kind, owner)
		}
		runtime.KeepAlive(mechanism)
	}
	if owner := namesake.Owner(struct{}{}, "lock", "x"); owner != nil {
		t.Errorf("%T of a store from elsewhere", owner)
	}
}

// An owner that was closed is not returned, and another one of its name is.
func TestAnOwnerThatLeft(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	first := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100)))
	if owner := namesake.Owner(st, "rate_limit", "api"); owner != first {
		t.Errorf("%v, want the first", owner)
	}
	second := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100)))
	_ = first.Close()
	if owner := namesake.Owner(st, "rate_limit", "api"); owner != second {
		t.Errorf("after the first was closed there is %v, want the second", owner)
	}
	_ = second.Close()
	if owner := namesake.Owner(st, "rate_limit", "api"); owner != nil {
		t.Errorf("after both were closed there is %v", owner)
	}
}

// The register keeps no owner from being collected, and then forgets it.
func TestAnOwnerThatWasDropped(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	kept := must(guard.New(st, "orders"))
	for range 10 {
		must(guard.New(st, "orders"))
		must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100)))
	}
	testpace.Eventually(t, 10*time.Second, "dropped mechanisms are forgotten", func() bool {
		runtime.GC()
		groups := namesake.Members(st)
		return namesake.Owner(st, "rate_limit", "api") == nil && len(groups) == 1 && groups[0].Members == 1
	})
	if owner := namesake.Owner(st, "idempotency", "orders"); owner != kept {
		t.Errorf("%v, want the one that is left", owner)
	}
	runtime.KeepAlive(kept)
}

// Mechanisms may be looked up while others come and go.
func TestOwnersConcurrently(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	var users sync.WaitGroup
	for n := range 4 {
		users.Go(func() {
			for i := range 100 {
				l := must(tokenbucket.New(st, "api"+strconv.Itoa(n%2), tokenbucket.PerMinute(100)))
				if owner, ok := namesake.Owner(st, "rate_limit", "api"+strconv.Itoa(i%2)).(*tokenbucket.Limiter); ok {
					_, _ = owner.Allow(t.Context(), "key") // it is complete
				}
				_ = l.Close()
			}
		})
	}
	users.Wait()
	if groups := namesake.Members(st); len(groups) != 0 {
		t.Errorf("%d names are left", len(groups))
	}
}
