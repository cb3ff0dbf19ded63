package locks

import (
	"context"
	"math"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	records := []record{
		{Holds: []hold{{Worker: 0, Granted: 0, Releasing: 1000}, {Worker: 0, Granted: 5000, Releasing: 6000}}, Waits: []int64{1e6, 2e6}},
		{Holds: []hold{{Worker: 1, Granted: 3000, Releasing: 4000}, {Worker: 1, Granted: 7000, Releasing: 8000}}, Waits: []int64{3e6}, Failures: 2, Error: "no"},
	}
	r := judge(records, 3, 2*time.Second)
	if r.acquisitions != 4 || r.perSecond != 2 {
		t.Errorf("%d acquisitions, %v per second, want 4 and 2", r.acquisitions, r.perSecond)
	}
	if r.handOffP50 != 1 || r.handOffP99 != 2 || r.handOffShare != 1 {
		t.Errorf("hand-offs of %v and %v µs, share %v, want 1, 2 and 1", r.handOffP50, r.handOffP99, r.handOffShare)
	}
	if r.most != 2 || r.fewest != 0 {
		t.Errorf("most %d, fewest %d, want 2 and 0: the third goroutine starved", r.most, r.fewest)
	}
	if r.waitP99 != 3 || r.failures != 2 || r.failure != "no" || r.overlaps != 0 {
		t.Errorf("wait %v ms, %d failures (%s), %d overlaps", r.waitP99, r.failures, r.failure, r.overlaps)
	}
}

func TestJudgeFindsBrokenExclusion(t *testing.T) {
	r := judge([]record{{Holds: []hold{{Worker: 0, Granted: 0, Releasing: 1000}, {Worker: 1, Granted: 999, Releasing: 2000}}}}, 2, time.Second)
	if r.overlaps != 1 {
		t.Errorf("%d overlaps, want 1", r.overlaps)
	}
}

func TestPercentile(t *testing.T) {
	for _, test := range []struct {
		values []int64
		p      float64
		want   float64
	}{
		{[]int64{3, 1, 2}, 0.5, 2},
		{[]int64{3, 1, 2, 4}, 0.5, 2},
		{[]int64{3, 1, 2}, 0.99, 3},
		{[]int64{7}, 0.5, 7},
	} {
		if got := percentile(test.values, test.p); got != test.want {
			t.Errorf("percentile %v of %v is %v, want %v", test.p, test.values, got, test.want)
		}
	}
	if !math.IsNaN(percentile(nil, 0.5)) {
		t.Error("there is a percentile of nothing")
	}
}

func TestContestOfAMutex(t *testing.T) {
	const goroutines = 4
	d := 50 * time.Millisecond
	r := judge([]record{contest(context.Background(), []Client{&mutex{}}, goroutines, 0, time.Millisecond, d)}, goroutines, d)
	if r.acquisitions == 0 || r.overlaps != 0 || r.failures != 0 {
		t.Errorf("%d acquisitions, %d overlaps, %d failures", r.acquisitions, r.overlaps, r.failures)
	}
	if ceiling := int(d/time.Millisecond) + 1; r.acquisitions > ceiling {
		t.Errorf("%d acquisitions in %v, more than %d", r.acquisitions, d, ceiling)
	}
}
