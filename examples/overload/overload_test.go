package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo/demotest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patient is the usual scene with fewer and longer requests, for a busy machine: every ratio is the
// same.
func patient() program {
	s := usual
	for _, d := range []*time.Duration{&s.least, &s.most, &s.patience, &s.target} {
		*d = testpace.Scale(2 * *d)
	}
	return program{s}
}

// Each phase ends with the goodput that its gate promises: the program's own rows say so. What else
// runs on the machine may keep a gate from it for a second, but not in each of three runs.
func TestPhases(t *testing.T) {
	t.Parallel()
	const runs = 3
	for i := range runs {
		broken := phases(t, testpace.Scale(3*time.Second).Round(time.Second))
		if len(broken) == 0 {
			return
		}
		t.Logf("run %d: %s", i+1, strings.Join(broken, "; "))
	}
	t.Errorf("%d runs, and none in which every gate keeps its promise", runs)
}

// phases runs all phases, and returns which promises were broken.
func phases(t *testing.T, phase time.Duration) (broken []string) {
	t.Helper()
	wrong := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	var stdout, stderr bytes.Buffer
	if code := patient().Run(t.Context(), []string{"-plain", "-phase", phase.String()}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	t.Log(&stdout)
	var settled []row
	for line := range strings.Lines(stdout.String()) {
		var r row
		if n, _ := fmt.Sscanf(line, " second half %d %d %d %d", &r.High, &r.Low, &r.Refused, &r.Late); n == 4 {
			settled = append(settled, r)
		}
	}
	if len(settled) != 6 {
		t.Fatalf("%d phases have ended", len(settled))
	}
	none, static, tiers, adaptive, alike, edited := settled[0], settled[1], settled[2], settled[3], settled[4], settled[5]
	best := 0
	for _, r := range settled {
		best = max(best, r.High+r.Low)
	}
	if got := none.High + none.Low; 3*got > best {
		wrong("without a gate %d a second are answered in time, and with the best one %d", got, best)
	}
	for name, r := range map[string]row{"static": static, "tiers": tiers, "adaptive": adaptive, "rules": alike, "rules, edited": edited} {
		if got := r.High + r.Low; 2*got < best {
			wrong("%s: %d a second are answered in time, and with the best gate %d", name, got, best)
		}
		if r.Refused == 0 {
			wrong("%s refuses nothing", name)
		}
	}
	for name, r := range map[string]row{"static": static, "rules": alike} {
		if r.High > 2*r.Low || r.Low > 2*r.High {
			wrong("%s: %d orders and %d searches a second, though all are alike", name, r.High, r.Low)
		}
	}
	for name, r := range map[string]row{"tiers": tiers, "adaptive": adaptive, "rules, edited": edited} {
		if r.High < 2*r.Low {
			wrong("%s: %d orders and %d searches a second", name, r.High, r.Low)
		}
	}
	return broken
}

// The program can be ended at any time.
func TestEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var stdout, stderr bytes.Buffer
	time.AfterFunc(100*time.Millisecond, cancel) // in the first phase
	if code := patient().Run(ctx, []string{"-plain", "-phase", "1m"}, &stdout, &stderr); code != 0 {
		t.Errorf("exit code %d: %s", code, &stderr)
	}
	run := demotest.Start(t, patient(), "-phase", "1m")
	answer, err := run.Client.Post(run.URL+"/play/all", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Body.Close() != nil || answer.StatusCode != 204 {
		t.Errorf("status %d", answer.StatusCode)
	}
	if code := run.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestWrongFlags(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-phase 1s", "-phase 2500ms", "-phase 2m", "-phase 2s more", "-addr nowhere"} {
		demotest.Fails(t, patient(), strings.Fields(args)...)
	}
}

// What somebody else has written into the file stays.
func TestEditOfTheRules(t *testing.T) {
	t.Parallel()
	f, err := newRulesFile(usual)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.remove(); err != nil {
			t.Error(err)
		}
	}()
	edit := func() string {
		t.Helper()
		if err := f.edit(); err != nil {
			t.Fatal(err)
		}
		text, err := f.text()
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if text := edit(); !strings.Contains(text, "version: 2") || !strings.Contains(text, "low: 70%") {
		t.Errorf("the program writes\n%s", text)
	}
	const mine = "version: mine\n"
	if err := os.WriteFile(f.path, []byte(mine), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := edit(); text != mine {
		t.Errorf("the program replaces it by\n%s", text)
	}
}
