package tokenbucket_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A nanosecond for each token is less than one in 100,000, also at 3,000 a second.
func TestTokensOfAnHour(t *testing.T) {
	for _, rate := range []int64{100, 300, 3000} {
		synctest.Test(t, func(t *testing.T) {
			l, _ := newLimiter(t, tokenbucket.PerSecond(rate).Burst(10*rate))
			takeAll := func() int64 {
				d := must(l.Peek(t.Context(), "k"))
				n := d.Limits()[0].Remaining
				if d, err := l.AllowN(t.Context(), "k", n); err != nil || !d.Allowed {
					t.Fatalf("%+v, %v", d, err)
				}
				return n
			}
			takeAll()
			taken := int64(0)
			for range 3600 {
				time.Sleep(time.Second)
				taken += takeAll()
			}
			if full := 3600 * rate; taken > full || taken < full-full/100_000-1 {
				t.Errorf("%d tokens of %d a second came back in an hour", taken, rate)
			}
		})
	}
}

// Resets do not show the nanoseconds that are added to intervals.
func TestResetOfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newLimiter(t, tokenbucket.PerSecond(300).Burst(600))
		d := must(l.AllowN(t.Context(), "k", 300))
		if s := d.Limits()[0]; s.Reset != time.Second || s.Window != 2*time.Second {
			t.Errorf("300 of 600 tokens at 300 a second were taken: %+v", s)
		}
	})
}
