// Package wiring checks which wirings of a framework's middleware must not compile, and which must
// panic.
package wiring

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Framework describes the wiring of a framework's middleware.
type Framework struct {
	Package string // the name of the framework's package in this module
	Other   string // that of another framework's
	Imports string // other imports of Request and Deny
	Request string // the argument type of key functions
	Deny    string // a function for OnDeny
	RPC     bool   // gRPC, without the options of HTTP
}

// Compile compiles every middleware with every option, and the mistakes that would cost money. Only
// valid combinations may compile.
func Compile(t *testing.T, f Framework) {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("no go command to compile with: %v", err)
	}
	lines := f.lines()
	source, first := f.source(lines)
	path := filepath.Join(t.TempDir(), "wiring.go")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	// All mistakes are in one file, and -e makes the compiler report more than ten.
	out, err := exec.CommandContext(t.Context(), "go", "build", "-gcflags=-e", path).CombinedOutput() //nolint:gosec // the test's own file
	if err == nil {
		t.Fatal("everything compiles")
	}
	for _, complaint := range judge(lines, first, string(out)) {
		t.Error(complaint)
	}
}

// Panics checks that every function panics with the text that it is listed under: "package: New:
// reason".
func Panics(t *testing.T, mistakes map[string]func()) {
	for want, wire := range mistakes {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panicked with %v", got)
				}
			}()
			wire()
		})
	}
}

// line is a line of code, and its mistake.
type line struct {
	code    string
	mistake string // an expression that cannot be used there; empty if there is none
}

// option is an option, and the policies that it is for.
type option struct {
	code     string
	policies []string
}

var policies = []string{"ratelimit", "idempotency", "exclusive", "concurrency", "fenced"}

// ofHTTP are the options that interceptors do not have.
var ofHTTP = []string{
	"policy.LegacyHeaders()", "policy.HideLimits()", "policy.ChargeStatus(401)", `policy.Methods("PUT")`, "policy.MaxBody(1)", "policy.MaxBodies(1)", "policy.Fingerprint(nil)", `policy.JSONFingerprint("id")`, "policy.KeepStatus(500)", "policy.ReleaseStatus(404)",
	`policy.KeepHeaders("X-A")`, `policy.DropHeaders("X-A")`,
}

func (f Framework) options() []option {
	options := []option{
		{"policy.FailOpen()", []string{"ratelimit", "concurrency"}},
		{"policy.LegacyHeaders()", []string{"ratelimit"}},
		{"policy.HideLimits()", []string{"ratelimit"}},
		{"policy.RetryJitter(time.Second)", []string{"ratelimit"}},
		{"policy.Shadow()", []string{"ratelimit"}},
		{"policy.ChargeStatus(401)", []string{"ratelimit"}},
		{"policy.Hold(tokenbucket.Escalate(time.Minute, 2, time.Hour))", []string{"ratelimit"}},
		{"ratelimit.Costs(costs)", []string{"ratelimit"}},
		{"policy.Overload()", []string{"concurrency"}},
		{"concurrency.Tiers(tier)", []string{"concurrency"}},
		{"policy.Required()", []string{"idempotency"}},
		{`policy.Methods("PUT")`, []string{"idempotency"}},
		{"policy.MaxBody(1)", []string{"ratelimit", "idempotency"}},
		{"policy.MaxBodies(1)", []string{"ratelimit", "idempotency"}},
		{"policy.Fingerprint(nil)", []string{"idempotency"}},
		{`policy.JSONFingerprint("id")`, []string{"idempotency"}},
		{"policy.KeyAlone()", []string{"idempotency"}},
		{"idempotency.KeyFrom(key)", []string{"idempotency"}},
		{"policy.KeepStatus(500)", []string{"idempotency"}},
		{"policy.ReleaseStatus(404)", []string{"idempotency"}},
		{`policy.KeepHeaders("X-A")`, []string{"idempotency"}},
		{`policy.DropHeaders("X-A")`, []string{"idempotency"}},
		{"policy.Retention(time.Minute)", []string{"idempotency"}},
		{"policy.RunUnprotected()", []string{"idempotency", "exclusive", "fenced"}},
		{"policy.AllowUnfenced()", []string{"fenced"}},
		{"policy.Wait(time.Second)", []string{"idempotency", "exclusive", "concurrency"}},
		{"policy.MaxWaiting(4)", []string{"idempotency", "exclusive"}},
		{"policy.Dedupe(time.Second)", []string{"idempotency"}},
		{"policy.MaxRun(time.Second)", []string{"idempotency"}},
		{"policy.StatusHeaders()", []string{"idempotency", "ratelimit"}},
		{`policy.ProblemTypes("https://shop.example/problems/")`, policies},
		{f.Package + ".Unless(skip)", policies},
		{f.Package + ".OnDeny(deny)", policies},
	}
	if f.RPC {
		for i, o := range options {
			if slices.Contains(ofHTTP, o.code) {
				options[i].policies = nil
			}
		}
		options = append(options, option{"ratelimit.PerMessage()", []string{"ratelimit"}}, option{"ratelimit.ChargeCodes(16)", []string{"ratelimit"}})
		for _, code := range []string{"idempotency.PassStreams()", `idempotency.KeyField("id")`, "idempotency.KeepCodes(10)", "idempotency.Fingerprint(nil)"} {
			options = append(options, option{code, []string{"idempotency"}})
		}
	}
	return options
}

// with returns the code of a middleware with an option.
func (f Framework) with(policy, option string) string {
	by := f.Package + ".Global()"
	if policy == "idempotency" {
		by = f.Package + ".Unscoped()"
	}
	return "_ = " + policy + ".New(" + policy + "State, " + by + ", " + option + ")"
}

// lines returns every option on every middleware, and other mistakes.
func (f Framework) lines() []line {
	var lines []line
	for _, o := range f.options() {
		for _, p := range policies {
			l := line{code: f.with(p, o.code)}
			if !slices.Contains(o.policies, p) {
				l.mistake = o.code
			}
			lines = append(lines, l)
		}
	}
	mistake := func(code, expression string) {
		lines = append(lines, line{strings.ReplaceAll(code, "$", expression), expression})
	}
	byKey := f.Package + `.ByHeader("Idempotency-Key")`
	if f.RPC {
		byKey = f.Package + `.ByMetadata("idempotency-key")`
	}
	mistake("_ = idempotency.New(idempotencyState, $)", byKey)
	mistake("_ = idempotency.New(idempotencyState, $)", "key")
	mistake("_ = "+f.Package+".ScopeBy($)", f.Package+".Unscoped()")
	for _, p := range policies {
		switch p {
		case "idempotency":
			mistake("_ = idempotency.New(idempotencyState, $)", f.Other+".Unscoped()")
		default:
			mistake("_ = "+p+".New("+p+"State, $)", f.Other+".Global()")
			mistake("_ = "+p+".New("+p+"State, $)", f.Package+".Unscoped()")
		}
	}
	mistake("_ = ratelimit.New($, "+f.Package+".Global())", "concurrencyState")
	return lines
}

// source returns a file with these lines, and the number of the first.
func (f Framework) source(lines []line) (source string, first int) {
	const module = "github.com/lockkeeper/lockkeeper/"
	var b strings.Builder
	b.WriteString("package wiring\n\nimport (\n\t\"time\"\n" + f.Imports + "\n")
	for _, path := range []string{
		"core/guard", "core/lock", "core/fence", "core/policy", "core/semaphore", "core/tokenbucket", f.Package, f.Other,
		f.Package + "/concurrency", f.Package + "/exclusive", f.Package + "/fenced", f.Package + "/idempotency", f.Package + "/ratelimit",
	} {
		b.WriteString("\t" + strconv.Quote(module+path) + "\n")
	}
	b.WriteString(`)

var (
	ratelimitState   *tokenbucket.Limiter
	idempotencyState *guard.Guard
	exclusiveState   *lock.Locker
	concurrencyState *semaphore.Semaphore
	fencedState      fence.Checker
)

func skip(` + f.Request + `) bool { return false }

func key(` + f.Request + `) (string, error) { return "", nil }

func costs(` + f.Request + `) tokenbucket.Cost { return nil }

func tier(` + f.Request + `) policy.Tier { return policy.Low }

var deny = ` + f.Deny + `

func wire() {
`)
	first = strings.Count(b.String(), "\n") + 1
	for _, l := range lines {
		b.WriteString("\t" + l.code + "\n")
	}
	b.WriteString("}\n")
	return b.String(), first
}

// judge compares the compiler's output for lines, of which the first has this number, with the
// expected one.
func judge(lines []line, first int, out string) (complaints []string) {
	messages := make(map[int]string)
	for text := range strings.Lines(out) {
		text = strings.TrimSpace(text)
		if _, after, ok := strings.Cut(text, "wiring.go:"); ok {
			number, message, _ := strings.Cut(after, ":")
			n, _ := strconv.Atoi(number)
			messages[n] += message
		} else if text != "" && !strings.HasPrefix(text, "# ") && !strings.HasPrefix(text, "have ") && !strings.HasPrefix(text, "want ") {
			complaints = append(complaints, "the compiler reports "+text)
		}
	}
	for i, l := range lines {
		message := messages[first+i]
		delete(messages, first+i)
		switch {
		case l.mistake == "" && message != "":
			complaints = append(complaints, "does not compile: "+l.code+"\n\t"+message)
		case l.mistake != "" && message == "":
			complaints = append(complaints, "compiles: "+l.code)
		case l.mistake != "" && !strings.Contains(message, "cannot use "+l.mistake+" "):
			complaints = append(complaints, "fails for another reason than "+l.mistake+": "+l.code+"\n\t"+message)
		}
	}
	for n, message := range messages {
		complaints = append(complaints, "does not compile: "+strconv.Itoa(n)+":"+message)
	}
	return complaints
}
