package observability_test

import (
	"cmp"
	"errors"
	"strconv"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// An outage is logged at its beginning and at its end, however many requests fail.
func TestOutageIsLoggedOnce(t *testing.T) {
	server := redistest.Start(t)
	w := newWorld(t)
	l := w.limiter(w.redisstore(server), tokenbucket.PerSecond(1000))
	_ = must(l.Allow(t.Context(), secretKey))
	server.Stop()
	for range 100 {
		if _, err := l.Allow(t.Context(), secretKey); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	server.Restart()
	until(t, "Redis is back", func() bool { return len(w.log.records(t, "replies again")) > 0 })
	_ = must(l.Allow(t.Context(), secretKey))
	for message, level := range map[string]string{"redis is down": "WARN", "replies again": "INFO"} {
		if all := w.log.records(t, message); len(all) != 1 || all[0]["level"] != level {
			t.Errorf("%q is logged as %v, want it once at %s", message, all, level)
		}
	}
	if all := w.log.records(t, ""); len(all) != 2 {
		t.Errorf("%d records for one outage:\n%s", len(all), w.log.String())
	}
}

// Unconfirmed completions are logged at the first and when all are confirmed, with their number.
func TestUnconfirmedCompletionsAreLoggedOnce(t *testing.T) {
	w := newWorld(t)
	st := w.memstore()
	g := w.guard(st)
	var all []*guard.Attempt
	for i := range 100 {
		a, _, err := g.Begin(t.Context(), operation(strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	st.Break(storetest.SettleOperation, storetest.Down)
	for _, a := range all {
		if err := a.Complete(t.Context(), guard.Result{}); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	st.Mend(storetest.Any)
	ok(t, st.Shutdown(t.Context()))
	begins, ends := w.log.records(t, "are unconfirmed"), w.log.records(t, "no completions are pending")
	if len(begins) != 1 || len(ends) != 1 || ends[0]["confirmed"] != 100.0 || ends[0]["dropped"] != 0.0 || len(w.log.records(t, "")) != 2 {
		t.Errorf("100 unconfirmed completions are logged as\n%s", w.log.String())
	}
}

// checkOnce checks that a condition that ten requests met was logged once by the store, and once by
// the guard; and the damaged task of each queue once.
func (w *world) checkOnce(t *testing.T) {
	by := make(map[any]int)
	for _, record := range w.log.records(t, "a record is damaged") {
		by[cmp.Or(record["store"], record["mechanism"])]++
	}
	if by["redis"] != 1 || by["idempotency"] != 1 || by["delay"] != 2 {
		t.Errorf("damage is logged %v times, want once by the store, once by the guard, and once by each queue", by)
	}
}
