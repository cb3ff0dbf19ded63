package contest

import (
	"context"
	"testing"
	"time"
)

func TestJudge(t *testing.T) {
	records := []Record{
		{Holds: []hold{{Worker: 0, Granted: 0, Releasing: 1000}, {Worker: 0, Granted: 5000, Releasing: 6000}}, Waits: []int64{1e6, 2e6}},
		{Holds: []hold{{Worker: 1, Granted: 3000, Releasing: 4000}, {Worker: 1, Granted: 7000, Releasing: 8000}}, Waits: []int64{3e6}, Failures: 2, Error: "no"},
	}
	r := Judge(records, 3, 1, 2*time.Second)
	if r.Acquisitions != 4 || r.PerSecond != 2 {
		t.Errorf("%d acquisitions, %v per second, want 4 and 2", r.Acquisitions, r.PerSecond)
	}
	if r.HandOffP50 != 1 || r.HandOffP99 != 2 || r.HandOffShare != 1 {
		t.Errorf("hand-offs of %v and %v µs, share %v, want 1, 2 and 1", r.HandOffP50, r.HandOffP99, r.HandOffShare)
	}
	if r.Most != 2 || r.Fewest != 0 {
		t.Errorf("most %d, fewest %d, want 2 and 0: the third goroutine starved", r.Most, r.Fewest)
	}
	if r.WaitP99 != 3 || r.Failures != 2 || r.Failure != "no" || r.Overlaps != 0 {
		t.Errorf("wait %v ms, %d failures (%s), %d overlaps", r.WaitP99, r.Failures, r.Failure, r.Overlaps)
	}
}

func TestJudgeFindsBrokenExclusion(t *testing.T) {
	records := []Record{{Holds: []hold{
		{Worker: 0, Granted: 0, Releasing: 1000}, {Worker: 1, Granted: 999, Releasing: 3000}, {Worker: 0, Granted: 2000, Releasing: 4000},
		{Worker: 2, Granted: 2500, Releasing: 3500}, {Worker: 1, Granted: 3000, Releasing: 5000},
	}}}
	for capacity, want := range map[int]int{1: 4, 2: 2, 3: 0} {
		r := Judge(records, 3, capacity, time.Second)
		if r.Overlaps != want || r.AtOnce != 3 {
			t.Errorf("capacity %d: %d overlaps, want %d; %d at once, want 3", capacity, r.Overlaps, want, r.AtOnce)
		}
		if (r.Err() != nil) != (want > 0) {
			t.Errorf("capacity %d: %v", capacity, r.Err())
		}
	}
}

func TestContest(t *testing.T) {
	const goroutines, capacity = 4, 2
	d := 50 * time.Millisecond
	slots := make(chan struct{}, capacity)
	c := Crowd{Goroutines: goroutines, Capacity: capacity, Held: time.Millisecond, For: d}
	r := c.Ceiling(context.Background(), Local{Acquire: func() { slots <- struct{}{} }, Release: func() { <-slots }})
	if r.Acquisitions == 0 || r.Overlaps != 0 || r.Failures != 0 {
		t.Errorf("%d acquisitions, %d overlaps, %d failures", r.Acquisitions, r.Overlaps, r.Failures)
	}
	if ceiling := capacity * (int(d/time.Millisecond) + 1); r.Acquisitions > ceiling {
		t.Errorf("%d acquisitions in %v, more than %d", r.Acquisitions, d, ceiling)
	}
}
