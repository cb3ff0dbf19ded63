package middleware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

var errRefused = fmt.Errorf("%w: dial: %w", store.ErrUnavailable, syscall.ECONNREFUSED)

// Bypassing is logged at its beginning, when its cause changes, and at its end, with the number of
// requests. A single reply of the store does not end it.
func TestWatchLogsTheTimeInWhichRequestsPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newWatch(setting.Settings{Logger: slog.New(slog.NewTextHandler(&log, nil)), Open: setting.Open{Passes: true}}, "rate_limit", "api")
		lines := func(want int) string {
			t.Helper()
			if got := strings.Count(log.String(), "\n"); got != want {
				t.Fatalf("%d lines, want %d:\n%s", got, want, &log)
			}
			all := strings.Split(log.String(), "\n")
			return all[max(len(all)-2, 0)]
		}
		w.Decided(t.Context())
		lines(0)
		for range 5 {
			if !w.Passes(t.Context(), errRefused) {
				t.Fatal("it does not pass")
			}
			w.Decided(t.Context())
		}
		for _, want := range []string{"level=WARN", "mechanism=rate_limit", "policy=api", "cause=connection_refused"} {
			if line := lines(1); !strings.Contains(line, want) {
				t.Errorf("%s has no %s", line, want)
			}
		}
		w.Passes(t.Context(), fmt.Errorf("%w: %w", store.ErrUnavailable, context.DeadlineExceeded))
		if line := lines(2); !strings.Contains(line, "cause=timeout") {
			t.Error(line)
		}
		time.Sleep(settled)
		w.Decided(t.Context())
		w.Decided(t.Context())
		if line := lines(3); !strings.Contains(line, "level=INFO") || !strings.Contains(line, "passed=6") {
			t.Error(line)
		}
		w.Passes(t.Context(), errRefused)
		lines(4)
	})
}

func TestWatchOfAClosedPolicy(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	for name, passes := range map[string]bool{
		"no policy":           newWatch(setting.Settings{}, "lock", "").Passes(t.Context(), errRefused),
		"a client that left":  newWatch(setting.Settings{Open: setting.Open{Passes: true}}, "lock", "").Passes(left, errRefused),
		"an error of another": newWatch(setting.Settings{Open: setting.Open{Passes: true}}, "lock", "").Passes(t.Context(), errors.New("mistake")),
	} {
		if passes {
			t.Errorf("%s: it passes", name)
		}
	}
}

// A value that the application did not provide is the server's mistake, and logged once.
func TestWatchLogsWhatIsMissing(t *testing.T) {
	var log bytes.Buffer
	w := newWatch(setting.Settings{Logger: slog.New(slog.NewTextHandler(&log, nil)), Open: setting.Open{Passes: true}}, "lock", "carts")
	for range 3 {
		if d := w.NoKey(t.Context(), fmt.Errorf(`%w: no "user" in the context`, policy.ErrNotProvided)); d.Reason != policy.InternalError {
			t.Errorf("%+v", d)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), `no \"user\" in the context`) {
		t.Errorf("logged %s", &log)
	}
	if d := w.NoKey(t.Context(), policy.ErrNoKey); d.Reason != policy.KeyMissing || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("%+v, %s", d, &log)
	}
}
