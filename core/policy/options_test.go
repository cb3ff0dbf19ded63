package policy

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
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

// A value that is no method, or has no unit, is refused when the program starts.
func TestMistakesPanic(t *testing.T) {
	for want, f := range map[string]func(){
		"policy: Methods: no methods":                                         func() { Methods() },
		`policy: Methods: "" is no method`:                                    func() { Methods("PUT", "") },
		`policy: Methods: "PUT, POST" is no method`:                           func() { Methods("PUT, POST") },
		`policy: Methods: "PÜT" is no method`:                                 func() { Methods("PÜT") },
		`policy: Methods: "PUT\n" is no method`:                               func() { Methods("PUT\n") },
		"policy: Wait: -1s is neither 0 nor between 1ms and 1h0m0s":           func() { Wait(-time.Second) },
		"policy: Wait: 2h0m0s is neither 0 nor between 1ms and 1h0m0s":        func() { Wait(2 * time.Hour) },
		"policy: Wait: 555555h33m20s is neither 0 nor between 1ms and 1h0m0s": func() { Wait(2e9 * time.Second) },
		"policy: ChargeStatus: no statuses":                                   func() { ChargeStatus() },
		"policy: ChargeStatus: 600 is no final status":                        func() { ChargeStatus(401, 600) },
		"policy: Hold: no escalation; use tokenbucket.Escalate":               func() { Hold(tokenbucket.Escalation{}) },
		"policy: RetryJitter: 999ms is not between 1s and 1h0m0s":             func() { RetryJitter(999 * time.Millisecond) },
		"policy: RetryJitter: 1h0m0.001s is not between 1s and 1h0m0s":        func() { RetryJitter(time.Hour + time.Millisecond) },
		"policy: MaxWaiting: 0 is less than 1":                                func() { MaxWaiting(0) },
		"policy: Dedupe: 999ms is not between 1s and 1h0m0s":                  func() { Dedupe(999 * time.Millisecond) },
		"policy: Dedupe: 3ns is not between 1s and 1h0m0s":                    func() { Dedupe(3) },
		"policy: Dedupe: 1h0m0.001s is not between 1s and 1h0m0s":             func() { Dedupe(time.Hour + time.Millisecond) },
		"policy: MaxBody: -1 is negative":                                     func() { MaxBody(-1) },
		"policy: MaxRun: 0s is less than 1ms":                                 func() { MaxRun(0) },
		"policy: MaxRun: 2ns is less than 1ms":                                func() { MaxRun(2) },
		"policy: Retention: 999ms is not between 1s and 366 days":             func() { Retention(999 * time.Millisecond) },
		"policy: Retention: 8784h0m1s is not between 1s and 366 days":         func() { Retention(366*24*time.Hour + time.Second) },
		"policy: KeepHeaders: no names":                                       func() { KeepHeaders() },
		"policy: DropHeaders: no names":                                       func() { DropHeaders() },
		`policy: KeepHeaders: "" is no name of a header field`:                func() { KeepHeaders("X-A", "") },
		`policy: DropHeaders: "X-A: 1" is no name of a header field`:          func() { DropHeaders("X-A: 1") },
		"policy: MaxBodies: 0 is less than 1":                                 func() { MaxBodies(0) },
		"policy: Fingerprint: nil function":                                   func() { Fingerprint(nil) },
		"policy: KeepStatus: 99 is no final status":                           func() { KeepStatus(99) },
		"policy: Wait: 2ns is neither 0 nor between 1ms and 1h0m0s":           func() { Wait(2) },
		"policy: Wait: 999.999µs is neither 0 nor between 1ms and 1h0m0s":     func() { Wait(time.Millisecond - 1) },
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

// An option that is nil is as if it were not there.
func TestNilOptionsAreIgnored(t *testing.T) {
	if s := setting.Of([]ExclusiveOption{nil, Wait(time.Second), nil}); s.Wait != time.Second {
		t.Errorf("%+v", s)
	}
}
