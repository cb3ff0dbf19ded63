package tokenbucket

import (
	"math/bits"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// meter does a limit's arithmetic: it turns tokens into time and back, exactly.
//
// One token takes step/den microseconds to come back, both integers without a common divisor.
// Products of two such numbers may need more than 64 bits and are computed in 128.
type meter struct {
	name     string // in decisions and headers
	bucket   string // in the store
	burst    int64
	step     int64 // µs × den per token
	den      int64
	capacity store.Span // of burst tokens
}

// newMeter compiles a limit that has passed check.
func newMeter(l Limit, name, bucket string) meter {
	micros := l.per.Microseconds()
	g := gcd(micros, l.count)
	m := meter{name: name, bucket: bucket, burst: l.burst, step: micros / g, den: l.count / g}
	m.capacity = m.span(l.burst)
	return m
}

// span is the time that n tokens take to come back, for 0 <= n <= burst.
func (m *meter) span(n int64) store.Span {
	if m.den == 1 {
		return store.Span{Micros: n * m.step}
	}
	hi, lo := bits.Mul64(uint64(n), uint64(m.step))
	micros, frac := bits.Div64(hi, lo, uint64(m.den))
	return store.Span{Micros: int64(micros), Frac: int64(frac)}
}

// remaining is how many whole tokens a bucket with this debt holds.
func (m *meter) remaining(debt store.Span) int64 {
	free := store.Span{Micros: m.capacity.Micros - debt.Micros, Frac: m.capacity.Frac - debt.Frac}
	if free.Frac < 0 {
		free = store.Span{Micros: free.Micros - 1, Frac: free.Frac + m.den}
	}
	if free.Micros < 0 {
		return 0
	}
	if m.den == 1 {
		return free.Micros / m.step
	}
	hi, lo := bits.Mul64(uint64(free.Micros), uint64(m.den))
	lo, carry := bits.Add64(lo, uint64(free.Frac), 0)
	tokens, _ := bits.Div64(hi+carry, lo, uint64(m.step))
	return int64(tokens)
}

// wait is how long a bucket with this debt needs until it can afford the cost, rounded up to the
// microsecond; zero if it can now.
func (m *meter) wait(debt, cost store.Span) time.Duration {
	due := debt.Plus(cost, m.den)
	return ceil(store.Span{Micros: due.Micros - m.capacity.Micros, Frac: due.Frac - m.capacity.Frac})
}

// tell describes the bucket after a decision, in place: to copy a description takes longer than to make it.
func (m *meter) tell(s *LimitState, debt, cost store.Span) {
	s.Name = m.name
	s.Capacity = m.burst
	s.Window = ceil(m.capacity)
	s.Remaining = m.remaining(debt)
	s.Reset = ceil(debt)
	s.RetryAfter = m.wait(debt, cost)
}

// ceil rounds up to whole microseconds; what is not positive becomes zero.
func ceil(s store.Span) time.Duration {
	if s.Frac > 0 {
		s.Micros++
	}
	return time.Duration(max(s.Micros, 0)) * time.Microsecond
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
