package telemetry_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// messages returns what f logs, without times.
func messages(f func(*slog.Logger)) []string {
	var text bytes.Buffer
	f(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})))
	return strings.Split(strings.TrimSpace(text.String()), "\n")
}

// Failing renewals are logged at the first failure, and at the next confirmed renewal, but not if
// no lease is left to renew.
func TestFailingRenewalsAreLogged(t *testing.T) {
	var counter live.Counter
	counter.Start()
	got := messages(func(logger *slog.Logger) {
		l := telemetry.NewLeases(telemetry.Providers{}, logger, "scope", "carts", "lock", &counter)
		ctx := context.Background()
		l.Renewed(ctx, []bool{true, true}, 2, nil)
		for range 3 {
			l.Renewed(ctx, []bool{true, false}, 2, store.ErrUnavailable)
		}
		l.Renewed(ctx, []bool{false, false}, 2, nil)
		logger.Info("no request was left")
		l.Renewed(ctx, []bool{true, false}, 2, nil)
		l.Renewed(ctx, []bool{true, true}, 2, nil)
	})
	if len(got) != 3 ||
		got[0] != `level=WARN msg="lockkeeper: lease renewals fail; leases end unless one succeeds" mechanism=lock policy=carts leases=1 error.type=store_unavailable` ||
		got[1] != `level=INFO msg="no request was left"` ||
		got[2] != `level=INFO msg="lockkeeper: leases are renewed again" mechanism=lock policy=carts` {
		t.Errorf("logged:\n%s", strings.Join(got, "\n"))
	}
	if r, _ := counter.Read(); r.Totals[live.Unrenewed] != 3 {
		t.Errorf("counted %v", r.Totals)
	}
}

// Damage is logged at once, and then once a minute with the number of occurrences.
func TestDamageIsLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := messages(func(logger *slog.Logger) {
			d := telemetry.NewRepeated(logger, telemetry.DamagedRecord)
			find := func(times int) {
				for range times {
					d.Found(t.Context())
				}
			}
			find(5)
			time.Sleep(time.Minute)
			find(3)
			time.Sleep(time.Hour)
			find(1)
		})
		want := []string{
			`level=ERROR msg="lockkeeper: a record is damaged" times=1`,
			`level=ERROR msg="lockkeeper: a record is damaged" times=5`,
			`level=ERROR msg="lockkeeper: a record is damaged" times=3`,
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("logged:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// A scope that fills is logged at 80 % of its records, and when it is full, once an hour each; of many
// scopes only some are.
func TestFullScopesAreLoggedOnceAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := messages(func(logger *slog.Logger) {
			g := telemetry.NewIdempotency(telemetry.Providers{}, logger, "scope", "orders", nil)
			for range 2 {
				for _, records := range []int{0, 79, 80, 87, 94, 100} {
					g.ScopeHas(t.Context(), "digest", records, 100)
				}
				for range 10 {
					g.ScopeIsFull(t.Context(), "digest", 100, time.Minute)
				}
				time.Sleep(time.Hour) // virtual
			}
		})
		filling := `level=WARN msg="lockkeeper: a scope has 80 % of the records that it may have (guard.WithMaxPerScope)" ` +
			`mechanism=idempotency policy=orders scope=digest records=80 max_records=100`
		full := `level=WARN msg="lockkeeper: a scope is full (guard.WithMaxPerScope), so its new operations are refused" ` +
			`mechanism=idempotency policy=orders scope=digest max_records=100 retry_after=1m0s`
		if !slices.Equal(got, []string{filling, full, filling, full}) {
			t.Errorf("logged:\n%s", strings.Join(got, "\n"))
		}
		got = messages(func(logger *slog.Logger) {
			g := telemetry.NewIdempotency(telemetry.Providers{}, logger, "scope", "orders", nil)
			for n := range 1000 {
				g.ScopeIsFull(t.Context(), strconv.Itoa(n), 100, time.Minute)
			}
		})
		if len(got) != 256 {
			t.Errorf("%d lines about 1,000 full scopes, want 256", len(got))
		}
	})
}
