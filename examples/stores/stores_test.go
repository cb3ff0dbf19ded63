package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/fence"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	redis.SetLogger(quiet{})
	workerMain()
	os.Exit(m.Run())
}

// On every store, no increment is lost, although a process is killed and another one paused while they
// hold the lock. The others wait for the lease, and a fence refuses what the paused one writes.
func TestStores(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			if testing.Short() && slices.Contains([]string{"postgres", "etcd", "zookeeper"}, kind) {
				t.Skip("starts a server that takes seconds to start")
			}
			t.Parallel()
			r, err := play(t.Context(), kind)
			if errors.Is(err, errNotInstalled) && os.Getenv("LOCKKEEPER_REQUIRE_"+strings.ToUpper(kind)) != "1" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			if !r.sound() || verdict(r, nil)[:2] != "ok" {
				t.Errorf("%d of %d increments, of which %d are lost; %d late writes; the next holder after %v, and after %v",
					r.value, target, r.lost, r.late, r.afterKill, r.afterWait)
			}
			for fault, took := range map[string]time.Duration{"kill": r.afterKill, "pause": r.afterWait} {
				if took < lease/2 {
					t.Errorf("another process had the lock %v after the %s of its holder, whose lease is %v", took, fault, lease)
				}
			}
		})
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	var out, errs strings.Builder
	if code := run(t.Context(), []string{"-store", "memory"}, &out, &errs); code != 0 || errs.Len() > 0 {
		t.Errorf("exit code %d: %s%s", code, &out, &errs)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], "store ") || !strings.HasPrefix(lines[1], "memory ") ||
		!strings.HasSuffix(lines[1], "  ok, by goroutines in the place of processes") {
		t.Errorf("it printed\n%s", &out)
	}
}

// A store whose server is missing is a failure, unless all stores were asked for.
func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, kind := range []string{"redis", "etcd", "zookeeper"} {
		var out strings.Builder
		if code := run(t.Context(), []string{"-store", kind}, &out, io.Discard); code != 1 || !strings.Contains(out.String(), "  not installed") {
			t.Errorf("exit code %d\n%s", code, &out)
		}
	}
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-store", "mysql"}, {"more"}, {"-unknown"}} {
		if code := run(t.Context(), args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%v: exit code %d, want 2", args, code)
		}
	}
}

// The counter finds what a lock without exclusion, or without fences, would do to it.
func TestCounter(t *testing.T) {
	t.Parallel()
	c := &counter{target: target, killed: "none", paused: "none"}
	first, second := fence.Token{Number: 1}, fence.Token{Number: 2}
	if value, err := c.read("a", first); value != 0 || err != nil {
		t.Fatal(value, err)
	}
	if value, err := c.read("b", second); value != 0 || err != nil {
		t.Fatal(value, err)
	}
	if err := c.write("a", first, 1); !errors.Is(err, fence.ErrStale) || c.late != 1 || c.value != 0 {
		t.Errorf("a late write: %v, value %d", err, c.value)
	}
	for range 2 { // two that have read the same value
		if err := c.write("b", second, 1); err != nil {
			t.Fatal(err)
		}
	}
	if c.lost != 1 {
		t.Errorf("%d lost increments, want 1", c.lost)
	}
	for _, r := range []row{
		{value: target, lost: 1, late: 1, afterKill: 1, afterWait: 1}, {value: target, afterKill: 1, afterWait: 1},
		{value: target, late: 1, afterWait: 1}, {value: target, late: 1, afterKill: 1}, {late: 1, afterKill: 1, afterWait: 1},
	} {
		if r.sound() || !strings.HasPrefix(verdict(r, nil), "WRONG") {
			t.Errorf("%+v is sound", r)
		}
	}
}
