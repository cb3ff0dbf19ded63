package policy

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

func TestMethodsAreMeantInUpperCase(t *testing.T) {
	given := []string{"post", "Put", http.MethodPatch, "x-Purge"}
	s := setting.Of([]IdempotencyOption{Methods(given...)})
	if want := []string{"POST", "PUT", "PATCH", "X-PURGE"}; !slices.Equal(s.Methods, want) {
		t.Errorf("%q, want %q", s.Methods, want)
	}
	if given[0] != "post" {
		t.Error("the caller's slice was changed")
	}
}

// What is no method, or has lost its unit, is refused when the program starts.
func TestMistakesPanic(t *testing.T) {
	for want, f := range map[string]func(){
		"policy: Methods: no methods":                                     func() { Methods() },
		`policy: Methods: "" is no method`:                                func() { Methods("PUT", "") },
		`policy: Methods: "PUT, POST" is no method`:                       func() { Methods("PUT, POST") },
		`policy: Methods: "PÜT" is no method`:                             func() { Methods("PÜT") },
		`policy: Methods: "PUT\n" is no method`:                           func() { Methods("PUT\n") },
		"policy: Wait: 2ns is neither 0 nor between 1ms and 1h0m0s":       func() { Wait(2) },
		"policy: Wait: 999.999µs is neither 0 nor between 1ms and 1h0m0s": func() { Wait(time.Millisecond - 1) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panicked with %v, want %s", got, want)
				}
			}()
			f()
		}()
	}
	Wait(0)
	Wait(time.Millisecond)
}
