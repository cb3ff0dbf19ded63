package pgstore

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Tests run beside each other, and beside those of other packages: any step may be late.

const (
	// patience is how long a test waits for what happens soon.
	patience = 30 * time.Second
	// lenient is the timeout of the stores of tests, so that a late reply is not an outage.
	lenient = 20 * time.Second
)

var (
	// hasty is the timeout of stores whose server does not reply. One that does may be later.
	hasty = testpace.Scale(200 * time.Millisecond)
	// brisk is the timeout of stores some of whose calls have to end without a reply, and others to
	// succeed.
	brisk = testpace.Scale(time.Second)
)

// eventually waits until something holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	testpace.Eventually(t, patience, what, holds)
}

// inTime measures how long something takes, up to five times until it takes at most so long. A busy
// machine makes some measurements late; a defect makes all of them late.
func inTime(t testing.TB, what string, most time.Duration, measure func() time.Duration) {
	t.Helper()
	var took []time.Duration
	for range 5 {
		d := measure()
		if d <= most {
			return
		}
		took = append(took, d)
	}
	t.Errorf("%s took %v, want at most %v", what, took, most)
}

// punctual checks how long many calls took, each of which has to end within a time. A busy machine makes
// a few of them late, and all of them by a little. A defect makes many late, or one by very much.
func punctual(t testing.TB, what string, most time.Duration, took []time.Duration) {
	t.Helper()
	slices.Sort(took)
	if nine, longest := took[len(took)*9/10], took[len(took)-1]; nine > most+most/2 || longest > most+patience {
		t.Errorf("nine %s in ten took up to %v, and one %v, want at most %v", what, nine, longest, most)
	}
}
