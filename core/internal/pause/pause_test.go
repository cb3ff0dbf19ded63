package pause_test

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/pause"
)

func TestGrowing(t *testing.T) {
	p := pause.Growing{Min: 8 * time.Millisecond, Max: 20 * time.Millisecond}
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
