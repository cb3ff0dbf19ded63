package redisstore_test

import (
	"context"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// allocates fails the test if f allocates more often than that. The race detector has pools forget
// some of what they keep.
func allocates(t *testing.T, what string, most float64, f func()) {
	t.Helper()
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		most *= 1.2
	}
	got := testing.AllocsPerRun(500, f)
	if got > most {
		t.Errorf("%s: %v allocations, want %v at most", what, got, most)
	}
	t.Logf("%s: %v allocations", what, got)
}

// The context can be canceled, as those of requests can.
func TestAllocationsOfALock(t *testing.T) {
	server := redistest.Start(t)
	locker, err := lock.New(newStore(t, obedient(t, server.Addr(), 10)), "jobs")
	must(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	within, cancel := context.WithCancel(ctx())
	defer cancel()
	allocates(t, "lock and unlock", 21, func() {
		lease, err := locker.Lock(within, "k")
		must(t, err)
		must(t, lease.Unlock(within))
	})
}

func TestAllocationsOfAnOperation(t *testing.T) {
	server := redistest.Start(t)
	g, err := guard.New(newStore(t, obedient(t, server.Addr(), 10)), "orders")
	must(t, err)
	t.Cleanup(func() { _ = g.Close() })
	within, cancel := context.WithCancel(ctx())
	defer cancel()
	result := guard.Result{Status: 200, Data: []byte(strings.Repeat("x", 256))}
	op := guard.Operation{Scope: "subject", Fingerprint: []byte("POST /orders")}
	n := 0
	allocates(t, "a fresh operation", 31, func() {
		n++
		op.Key = strconv.Itoa(n)
		attempt, _, err := g.Begin(within, op)
		must(t, err)
		must(t, attempt.Complete(within, result))
	})
	allocates(t, "a replay", 16, func() {
		if _, result, err := g.Begin(within, op); err != nil || result == nil {
			t.Fatalf("not replayed: %v", err)
		}
	})
}
