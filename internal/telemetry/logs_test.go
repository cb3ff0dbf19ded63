package telemetry_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
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
	got := messages(func(logger *slog.Logger) {
		l := telemetry.NewLeases(telemetry.Providers{}, logger, "scope", "carts", "lock")
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
