package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
)

// A request that was not sent since its deadline is too early is a timeout, as net/http has them.
func TestTimeout(t *testing.T) {
	for err, want := range map[error]bool{
		fmt.Errorf("the key is held: %w", context.DeadlineExceeded): true,
		context.Canceled:     false,
		errors.New("no key"): false,
	} {
		if got := (&url.Error{Op: "Post", URL: "/", Err: &NotSent{Err: err}}).Timeout(); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}
