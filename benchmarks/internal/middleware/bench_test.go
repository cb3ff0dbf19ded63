package middleware

import (
	"context"
	"testing"
	"time"
)

// BenchmarkRequest measures each framework alone and with each middleware, for go test -bench: the
// difference is the cost of the middleware.
func BenchmarkRequest(b *testing.B) {
	for _, g := range groups() {
		for _, c := range g.contenders {
			for name, make := range map[string]func(requests) (site, error){"bare": c.bare, "with": c.with} {
				b.Run(g.id+"/"+c.row+"/"+name, func(b *testing.B) {
					s, err := make(c.r)
					if err != nil {
						b.Fatal(err)
					}
					defer s.end()
					b.ReportAllocs()
					for i := 0; b.Loop(); i++ {
						s.call(i)
					}
				})
			}
		}
	}
}

// A middleware that refuses requests would seem to be a very fast one, so measure counts the runs
// of the handler.
func TestMeasure(t *testing.T) {
	for _, g := range groups() {
		for _, c := range g.contenders {
			t.Run(g.id+"/"+c.row, func(t *testing.T) {
				r, err := c.measure(context.Background(), 10*time.Millisecond)
				if err != nil {
					t.Fatal(err)
				}
				if g.headers && c.row == lockkeeper && r.headers != 2 {
					t.Errorf("adds %d header fields, want RateLimit and RateLimit-Policy", r.headers)
				}
			})
		}
	}
}

func TestMeasureFindsRefusals(t *testing.T) {
	c := contender{"refuses", bareHTTP, func(r requests) (site, error) {
		s, err := bareHTTP(r)
		s.call = func(int) {}
		return s, err
	}, limited}
	if _, err := c.measure(context.Background(), 10*time.Millisecond); err == nil {
		t.Error("a middleware that never runs the handler was measured")
	}
}

func TestKeysDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for i := range 1000 {
		key := keyOf(fresh, i)
		if len(key) != 36 || seen[key] {
			t.Fatalf("key %d is %q", i, key)
		}
		seen[key] = true
	}
	if keyOf(same, 1) != keyOf(same, 2) {
		t.Error("requests that have to have the same key have two")
	}
}
