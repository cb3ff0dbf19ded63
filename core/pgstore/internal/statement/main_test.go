package statement

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	testpace.Eventually(t, 10*time.Second, what, holds)
}
