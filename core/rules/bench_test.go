package rules_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// manyOverrides returns a document with n overrides, in one of two styles.
func manyOverrides(n, limit int, block bool) string {
	var b strings.Builder
	b.WriteString("limits:\n  api:\n    limit: 100/1m burst=20\n    overrides:\n")
	item := "      - { keys: [team-%06d], limit: %d/1m, comment: contract }\n"
	if block {
		item = "      - keys:\n        - team-%06d\n        limit: %d/1m\n"
	}
	for i := range n {
		fmt.Fprintf(&b, item, i, limit+i%50)
	}
	return b.String()
}

// A document with 10,000 overrides takes 0.2 s of one core, and more on a busy machine.
func TestManyOverrides(t *testing.T) {
	const longest = 3 * time.Second
	s, d := newService(t), document("{}")
	r := open(t, d.source(), s.all())
	for _, block := range []bool{false, true} {
		best := time.Hour
		for i := range 5 {
			text := manyOverrides(10_000, 1000+i, block)
			d.set(text)
			began := time.Now()
			ok(t, r.Reload(t.Context()))
			best = min(best, time.Since(began))
			if got := must(s.api.Peek(t.Context(), "team-009999")).Limits()[0].Capacity; got != int64(1000+i+49) {
				t.Errorf("the override is %d", got)
			}
		}
		t.Logf("block style: %v; the best of 5 took %v", block, best)
		if best > testpace.Scale(longest) && !testpace.Raced {
			t.Errorf("it takes %v", best)
		}
	}
}

func BenchmarkReload(b *testing.B) {
	for name, text := range map[string]string{"small": "limits: { api: { limit: %d/1m } }", "10,000 overrides": manyOverrides(10_000, 1000, false) + "#%d"} {
		b.Run(name, func(b *testing.B) {
			s, d := newService(b), document("{}")
			r := open(b, d.source(), s.all(), rules.Every(time.Hour))
			n := 0
			for b.Loop() {
				n++
				d.set(fmt.Sprintf(text, n))
				ok(b, r.Reload(b.Context()))
			}
		})
	}
	b.Run("unchanged", func(b *testing.B) {
		s, d := newService(b), document(manyOverrides(10_000, 1000, false))
		r := open(b, d.source(), s.all(), rules.Every(time.Hour))
		for b.Loop() {
			ok(b, r.Reload(b.Context()))
		}
	})
}
