package ginmw_test

import (
	"os/exec"
	"strings"
	"testing"
)

// The wiring mistakes that would cost money do not compile. Each program in testdata/wiring makes
// one of them.
func TestWiring(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("no go command to compile with: %v", err)
	}
	for dir, want := range map[string]string{
		"right":                             "",
		"key_for_scope":                     "cannot use ginmw.ByHeader",
		"func_for_scope":                    "cannot use (func(",
		"idempotency_option_on_ratelimit":   "cannot use policy.RunUnprotected()",
		"ratelimit_option_on_idempotency":   "cannot use policy.FailOpen()",
		"exclusive_option_on_ratelimit":     "cannot use policy.Wait(",
		"exclusive_option_on_idempotency":   "cannot use policy.Wait(",
		"ratelimit_option_on_exclusive":     "cannot use policy.FailOpen()",
		"concurrency_option_on_ratelimit":   "cannot use policy.MaxWaiting(",
		"concurrency_option_on_idempotency": "cannot use policy.MaxWaiting(",
		"concurrency_option_on_exclusive":   "cannot use policy.PerInstance()",
		"exclusive_option_on_concurrency":   "cannot use policy.RunUnprotected()",
		"ratelimit_option_on_concurrency":   "cannot use policy.LegacyHeaders()",
		"deny_of_another":                   "cannot use ratelimit.Deny(",
	} {
		t.Run(dir, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "go", "vet", "./testdata/wiring/"+dir).CombinedOutput()
			switch {
			case want == "" && err != nil:
				t.Errorf("does not compile: %v\n%s", err, out)
			case want != "" && err == nil:
				t.Error("compiles")
			case want != "" && !strings.Contains(string(out), want):
				t.Errorf("fails for another reason than %q:\n%s", want, out)
			}
		})
	}
}
