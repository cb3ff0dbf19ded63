// Package bucketmodel checks token buckets against exact fractions.
package bucketmodel

import (
	"math/big"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// bucket is a token bucket in exact fractions.
type bucket struct {
	interval *big.Rat // ns in which a token comes back
	owed     *big.Rat // tokens; negative for none
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func (b *bucket) pass(d time.Duration) {
	b.owed.Sub(b.owed, new(big.Rat).Quo(rat(int64(d)), b.interval))
	if b.owed.Sign() < 0 {
		b.owed.SetInt64(0)
	}
}

func (b *bucket) take(n int64) { b.owed.Add(b.owed, rat(n)) }

// until is how long the bucket needs until it owes n tokens at most, rounded up to the microsecond.
func (b *bucket) until(n int64) time.Duration {
	excess := new(big.Rat).Sub(b.owed, rat(n))
	if excess.Sign() <= 0 {
		return 0
	}
	micros := excess.Mul(excess, b.interval).Quo(excess, rat(int64(time.Microsecond)))
	whole, rest := new(big.Int).QuoRem(micros.Num(), micros.Denom(), new(big.Int))
	return time.Duration(whole.Int64()+int64(rest.Sign())) * time.Microsecond
}

// remaining is how many whole tokens a bucket of burst tokens has, which may be negative.
func (b *bucket) remaining(burst int64) int64 {
	left := new(big.Rat).Sub(rat(burst), b.owed)
	whole, _ := new(big.Int).DivMod(left.Num(), left.Denom(), new(big.Int))
	return whole.Int64()
}

// model has two bounds for one limit: exact is its bucket; in slow each token comes back a
// nanosecond later. A store has as many tokens as slow at least, and never more than exact.
type model struct {
	burst       int64
	exact, slow *bucket
}

func newModel(count int64, per time.Duration, burst int64) *model {
	interval := big.NewRat(int64(per), count)
	return &model{
		burst: burst,
		exact: &bucket{interval, rat(0)},
		slow:  &bucket{new(big.Rat).Add(interval, rat(1)), rat(0)},
	}
}

// window is what refills an empty bucket.
func (m *model) window() time.Duration {
	ns := new(big.Rat).Mul(m.exact.interval, rat(m.burst))
	return time.Duration(new(big.Int).Quo(ns.Num(), ns.Denom()).Int64())
}

func (m *model) check(t *rapid.T, s tokenbucket.LimitState, n int64) {
	t.Helper()
	if least, most := m.slow.remaining(m.burst), m.exact.remaining(m.burst); s.Remaining < least || s.Remaining > most {
		t.Fatalf("%d tokens remain, want %d to %d: %+v", s.Remaining, least, most, s)
	}
	if least, most := m.exact.until(0), m.slow.until(0); s.Reset < least || s.Reset > most {
		t.Fatalf("full in %v, want %v to %v: %+v", s.Reset, least, most, s)
	}
	if least, most := m.exact.until(m.burst-n), m.slow.until(m.burst-n); s.RetryAfter < least || s.RetryAfter > most {
		t.Fatalf("%d tokens in %v, want %v to %v: %+v", n, s.RetryAfter, least, most, s)
	}
	if s.Capacity != m.burst || s.Window < s.Reset {
		t.Fatalf("a burst of %d is %+v", m.burst, s)
	}
}

// Check makes decisions about a key of a store, at times that pass lets pass, in multiples of step:
// none that an exact bucket would not allow, and all that a bucket would whose tokens come back a
// nanosecond later.
func Check(t *rapid.T, buckets store.Buckets, pass func(time.Duration), step time.Duration) {
	plan, models := draw(t)
	l, err := tokenbucket.New(buckets, "model", plan)
	if err != nil {
		t.Skip(err) // not every draw is a limit
	}
	for range rapid.IntRange(1, 30).Draw(t, "decisions") {
		m := models[rapid.IntRange(0, len(models)-1).Draw(t, "model")]
		steps := int64(min(m.window(), 5*365*day) / step)
		pause := step * time.Duration(rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, max(steps, 1))).Draw(t, "pause"))
		pass(pause)
		for _, m := range models {
			m.exact.pass(pause)
			m.slow.pass(pause)
		}
		decide(t, l, models)
	}
}

func decide(t *rapid.T, l *tokenbucket.Limiter, models []*model) {
	smallest := models[0].burst
	for _, m := range models {
		smallest = min(smallest, m.burst)
	}
	n := rapid.OneOf(rapid.Int64Range(0, min(3, smallest)), rapid.Int64Range(0, smallest)).Draw(t, "tokens")
	take := func() (tokenbucket.Decision, error) { return l.AllowN(t.Context(), "k", n) }
	peek := rapid.IntRange(0, 4).Draw(t, "peek") == 0
	if peek {
		n, take = 1, func() (tokenbucket.Decision, error) { return l.Peek(t.Context(), "k") }
	}
	d, err := take()
	if err != nil {
		t.Fatal(err)
	}
	could, must := true, true
	for _, m := range models {
		could = could && m.exact.until(m.burst-n) == 0
		must = must && m.slow.until(m.burst-n) == 0
	}
	if d.Allowed && !could || !d.Allowed && must || d.Allowed != (d.RetryAfter == 0) {
		t.Fatalf("%d tokens: %+v; could be allowed: %v; must be: %v", n, d, could, must)
	}
	asked := n
	if d.Allowed && !peek {
		asked = 0
		for _, m := range models {
			m.exact.take(n)
			m.slow.take(n)
		}
	}
	for i, m := range models {
		m.check(t, d.Limits()[i], asked)
	}
}

const day = 24 * time.Hour

// draw returns a plan of one limit to three. Among them are the slowest and the fastest ones, and
// those whose windows are about 104 days: 2^53 ns.
func draw(t *rapid.T) (plan tokenbucket.Limits, models []*model) {
	ordinary := rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(1, 5_000_000).Draw(t, "µs")) * time.Microsecond
	})
	special := rapid.SampledFrom([]time.Duration{
		time.Microsecond, time.Second, time.Minute, time.Hour, day, 104 * day, 104*day + 6*time.Hour, 105 * day, 365 * day, 3660 * day,
	})
	for i := range rapid.IntRange(1, 3).Draw(t, "limits") {
		per := rapid.OneOf(ordinary, special).Draw(t, "period")
		count := rapid.OneOf(
			rapid.Int64Range(1, 5000), rapid.SampledFrom([]int64{1, 3, 7, 300, 3000, 1_000_000, 999_999_999, 1_000_000_000}),
		).Draw(t, "count")
		burst := rapid.OneOf(rapid.Int64Range(1, 50), rapid.SampledFrom([]int64{1, count, 1_000_000})).Draw(t, "burst")
		plan = append(plan, tokenbucket.Per(count, per).Burst(burst).Named(string(rune('a'+i))))
		models = append(models, newModel(count, per, burst))
	}
	return plan, models
}
