package tokenbucket_test

import (
	"math/big"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// model is a token bucket in exact fractions: what every store must agree with.
type model struct {
	count, burst int64
	per          time.Duration
	tokens       *big.Rat
	at           time.Time
}

func newModel(count int64, per time.Duration, burst int64) *model {
	return &model{count: count, burst: burst, per: per, tokens: rat(burst), at: time.Now()}
}

func rat(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

// refill brings the model to the present.
func (m *model) refill() {
	elapsed := rat(time.Since(m.at).Microseconds())
	m.at = time.Now()
	gained := elapsed.Mul(elapsed, big.NewRat(m.count, m.per.Microseconds()))
	if m.tokens.Add(m.tokens, gained); m.tokens.Cmp(rat(m.burst)) > 0 {
		m.tokens = rat(m.burst)
	}
}

func (m *model) remaining() int64 {
	return new(big.Int).Quo(m.tokens.Num(), m.tokens.Denom()).Int64()
}

// until is how long the model needs to hold n tokens, rounded up to the microsecond.
func (m *model) until(n int64) time.Duration {
	missing := new(big.Rat).Sub(rat(n), m.tokens)
	if missing.Sign() <= 0 {
		return 0
	}
	micros := missing.Mul(missing, big.NewRat(m.per.Microseconds(), m.count))
	q, r := new(big.Int).QuoRem(micros.Num(), micros.Denom(), new(big.Int))
	if r.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return time.Duration(q.Int64()) * time.Microsecond
}

func (m *model) check(t *rapid.T, s tokenbucket.LimitState, retryAfter time.Duration) {
	if s.Capacity != m.burst || s.Remaining != m.remaining() || s.Reset != m.until(m.burst) || s.RetryAfter != retryAfter {
		t.Fatalf("got %+v; the model has %d remaining, full in %v, retry after %v", s, m.remaining(), m.until(m.burst), retryAfter)
	}
}

// Whatever the rates, however the calls fall: decisions are those of exact fractions.
func TestAgreesWithExactFractions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// rapid must not ask for the test's deadline, which a bubble does not have.
		rapid.Check(struct{ rapid.TB }{t}, func(t *rapid.T) {
			var (
				plan   tokenbucket.Limits
				models []*model
			)
			for i := range rapid.IntRange(1, 3).Draw(t, "limits") {
				count := rapid.Int64Range(1, 5000).Draw(t, "count")
				per := time.Duration(rapid.Int64Range(1, 5_000_000).Draw(t, "per")) * time.Microsecond
				burst := rapid.Int64Range(1, 50).Draw(t, "burst")
				plan = append(plan, tokenbucket.Per(count, per).Burst(burst).Named(string(rune('a'+i))))
				models = append(models, newModel(count, per, burst))
			}
			l, err := tokenbucket.New(memstore.New(), "model", plan)
			if err != nil {
				t.Fatal(err)
			}
			for range rapid.IntRange(1, 40).Draw(t, "steps") {
				step(t, l, models)
			}
		})
	})
}

func step(t *rapid.T, l *tokenbucket.Limiter, models []*model) {
	pause := rapid.OneOf(rapid.Int64Range(0, 3), rapid.Int64Range(0, 2_000_000)).Draw(t, "pause in µs")
	time.Sleep(time.Duration(pause) * time.Microsecond)
	smallest := models[0].burst
	for _, m := range models {
		m.refill()
		smallest = min(smallest, m.burst)
	}
	cost := int64(1)
	peek := rapid.IntRange(0, 4).Draw(t, "peek") == 0
	if !peek {
		cost = rapid.Int64Range(0, smallest).Draw(t, "cost")
	}

	var wait time.Duration
	waits := make([]time.Duration, len(models))
	for i, m := range models {
		waits[i] = m.until(cost)
		wait = max(wait, waits[i])
	}
	if wait == 0 && !peek {
		for _, m := range models {
			m.tokens.Sub(m.tokens, rat(cost))
		}
	}

	ask := func() (tokenbucket.Decision, error) { return l.AllowN(t.Context(), "k", cost) }
	if peek {
		ask = func() (tokenbucket.Decision, error) { return l.Peek(t.Context(), "k") }
	}
	d, err := ask()
	if err != nil {
		t.Fatal(err)
	}
	if d.Allowed != (wait == 0) || d.RetryAfter != wait {
		t.Fatalf("cost %d: allowed %v after %v, want a wait of %v", cost, d.Allowed, d.RetryAfter, wait)
	}
	for i, m := range models {
		m.check(t, d.Limits()[i], waits[i])
	}
}
