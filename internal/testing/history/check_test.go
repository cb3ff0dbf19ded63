package history_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/history"
)

// The checks themselves can fail.

func TestCheckLock(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	none := func(string) bool { return false }
	right := []history.Event{
		{At: at(0), What: history.Granted, Hold: "1/1", N: 5}, {At: at(10), What: history.Ended, Hold: "1/1", N: 5},
		{At: at(12), What: history.Granted, Hold: "2/1", N: 9}, {At: at(20), What: history.Killed, Hold: "2"},
		{At: at(500), What: history.Granted, Hold: "3/1", N: 10}, {At: at(600), What: history.Ended, Hold: "3/1", N: 10},
	}
	if wrong := history.CheckLock(right, none, time.Second); len(wrong) != 0 {
		t.Errorf("a good history: %v", wrong)
	}
	for name, spoil := range map[string]func([]history.Event){
		"overlap":      func(h []history.Event) { h[1].Hold = "3/1" },
		"fence":        func(h []history.Event) { h[2].N = 5 },
		"stall":        func(h []history.Event) { h[4].At = at(1400) },
		"wrong victim": func(h []history.Event) { h[3].Hold = "1" },
	} {
		h := slices.Clone(right)
		spoil(h)
		if wrong := history.CheckLock(h, none, time.Second); len(wrong) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

func TestCheckSemaphore(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	right := []history.Event{
		{At: at(0), What: history.Granted, Hold: "1/1", N: 2}, {At: at(1), What: history.Granted, Hold: "2/1", N: 1},
		{At: at(2), What: history.Ended, Hold: "1/1", N: 2}, {At: at(3), What: history.Granted, Hold: "1/2", N: 2},
		{At: at(4), What: history.Killed, Hold: "1"}, {At: at(5), What: history.Granted, Hold: "2/2", N: 2},
		{At: at(6), What: history.Ended, Hold: "2/1", N: 1}, {At: at(7), What: history.Ended, Hold: "2/2", N: 2},
	}
	if wrong := history.CheckSemaphore(right, 3); len(wrong) != 0 {
		t.Errorf("a good history: %v", wrong)
	}
	for name, spoil := range map[string]func([]history.Event){
		"too many":     func(h []history.Event) { h[0].N = 3 },
		"not ended":    func(h []history.Event) { h[2].Hold = "1/7" },
		"left in use":  func(h []history.Event) { h[7].Hold = "2/7" },
		"wrong victim": func(h []history.Event) { h[4].Hold = "3" },
	} {
		h := slices.Clone(right)
		spoil(h)
		if wrong := history.CheckSemaphore(h, 3); len(wrong) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}
