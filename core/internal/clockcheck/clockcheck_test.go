package clockcheck_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/clockcheck"
)

func TestFinding(t *testing.T) {
	sent := time.Now()
	received := sent.Add(2 * time.Second) // a slow reply is no wrong clock
	for shown, want := range map[time.Duration]string{
		-900 * time.Millisecond: "", 0: "", time.Second: "", 2900 * time.Millisecond: "",
		-1500 * time.Millisecond: "1.5s behind", 5 * time.Second: "3s ahead of",
	} {
		found := clockcheck.Finding("a server", sent.Add(shown), sent, received)
		switch {
		case want == "" && found == nil:
		case want == "" || len(found) != 1 || !strings.Contains(found[0].String(), "clock of a server is "+want):
			t.Errorf("at %v: %v, want %q", shown, found, want)
		}
	}
}
