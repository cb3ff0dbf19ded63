package ewma_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/ewma"
)

func TestDuration(t *testing.T) {
	var a ewma.Duration
	if got := a.Get(); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	a.Add(800 * time.Millisecond)
	if got := a.Get(); got != 800*time.Millisecond {
		t.Errorf("of one: %v", got)
	}
	a.Add(0)
	if got := a.Get(); got != 700*time.Millisecond {
		t.Errorf("of two: %v", got)
	}
	for range 100 {
		a.Add(time.Second)
	}
	if got := a.Get(); got < 999*time.Millisecond || got > time.Second {
		t.Errorf("after many: %v", got)
	}
}
