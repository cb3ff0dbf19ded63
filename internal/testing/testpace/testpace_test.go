package testpace

import (
	"testing"
	"time"
)

func TestScale(t *testing.T) {
	for text, want := range map[string]float64{"": 1, "1": 1, "2.5": 2.5} {
		if got := factorOf(text); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
	if got := Scale(time.Second); got < time.Second {
		t.Errorf("a second is %v", got)
	}
	for _, text := range []string{"0", "0.5", "-1", "NaN", "slow"} {
		t.Run(text, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("it is accepted")
				}
			}()
			factorOf(text)
		})
	}
}
