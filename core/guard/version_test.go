package guard_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
)

// The version of a record changes with it, but not when the lease is renewed.
func TestRecordVersion(t *testing.T) {
	inBubble(t, func(f fixture) {
		inspect := func() guard.Record { return must(f.guard.Inspect(f.Context(), op)) }
		a := f.attempt()
		begun := inspect().Version()
		f.sleep(time.Minute)
		if again := inspect().Version(); again != begun || len(begun) != 22 {
			t.Errorf("version %q, after renewals %q", begun, again)
		}
		f.want(a.CompleteUnknown(f.Context()), nil)
		unknown := inspect()
		f.want(f.guard.Resolve(f.Context(), unknown, guard.NeverHappened(), "alice", "the ledger"), nil)
		if resolved := inspect().Version(); unknown.Version() == begun || resolved == unknown.Version() || resolved == begun {
			t.Errorf("versions %q, %q, %q", begun, unknown.Version(), resolved)
		}
	})
}
