package backoff_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

func TestGrowing(t *testing.T) {
	p := backoff.Growing{Min: 8 * time.Millisecond, Max: 20 * time.Millisecond}
	for range 2 {
		for i, ms := range []int{8, 12, 18, 20, 20} {
			length := time.Duration(ms) * time.Millisecond
			if got := p.Next(); got < length/2 || got >= length+length/2 {
				t.Errorf("pause %d is %v, want %v or half as much more or less", i, got, length)
			}
		}
		p.Reset()
	}
}

func TestAsked(t *testing.T) {
	for _, c := range []struct {
		delay   time.Duration
		retries int
		most    time.Duration
		longest time.Duration
	}{
		{0, 0, time.Minute, 50 * time.Millisecond},
		{time.Second, 0, time.Minute, 1500 * time.Millisecond},
		{time.Second, 2, time.Minute, 3 * time.Second},
		{time.Second, 1000, 2 * time.Second, 2 * time.Second},
		{time.Second, 0, time.Second, time.Second},
		{math.MaxInt64, 3, math.MaxInt64, math.MaxInt64},
	} {
		var longest time.Duration
		for range 200 {
			got := backoff.Asked(c.delay, c.retries, c.most)
			if got < c.delay || got > c.longest {
				t.Fatalf("Asked(%v, %d, %v) = %v", c.delay, c.retries, c.most, got)
			}
			longest = max(longest, got)
		}
		if spread := c.longest - c.delay; longest < c.longest-spread/5 {
			t.Errorf("Asked(%v, %d, %v) is %v at most", c.delay, c.retries, c.most, longest)
		}
	}
}

func TestSinceSent(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		age  string
		want time.Duration
	}{
		{time.Minute, "", time.Minute}, {time.Minute, "45", 15 * time.Second}, {time.Minute, "60", 0}, {time.Minute, "61", 0},
		{math.MaxInt64, "99999999999", 0}, {math.MaxInt64, "0", math.MaxInt64}, {0, "", 0},
		{-time.Second, "", 0}, {-time.Minute, "99999999999", 0}, {math.MinInt64, "1", 0}, {math.MinInt64, "", 0},
	} {
		h := http.Header{}
		if c.age != "" {
			h.Set("Age", c.age)
		}
		if got := backoff.SinceSent(h, c.d); got != c.want {
			t.Errorf("SinceSent(Age %q, %v) = %v, want %v", c.age, c.d, got, c.want)
		}
	}
}
