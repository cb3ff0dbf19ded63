package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The documents of the tests. A key of theirs must be in no log.
const (
	firstRules = `version: 1
limits:
  api:
    limit: 100/1m
    overrides:
      - { keys: [secret-key], limit: 1000/1m }
`
	secondRules = `version: 2
limits:
  api:
    limit: 200/1m
    overrides:
      - { keys: [secret-key], limit: 1000/1m }
semaphores:
  seats: { capacity: 4 }
`
	badRules = `limits:
  api: { limit: 1x/1m }
  api: { limit: 5/1m }
  gate: { limits: 5 }
nothing: true
`
	strangeRules = `limits:
  api: { limit: 5/1m }
  seats: { limit: 5/1m }
semaphores:
  gate: { capacity: 3 }
`
)

// files writes the documents into a folder.
func files(t testing.TB) string {
	t.Helper()
	folder := t.TempDir()
	for name, text := range map[string]string{
		"first.yaml": firstRules, "second.yaml": secondRules, "bad.yaml": badRules, "strange.yaml": strangeRules,
	} {
		must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	return folder + string(filepath.Separator)
}

// Documents are checked, pushed in the place of the version that was seen, compared, listed and rolled
// back, the same on every store. The log has who, why and the version, and no keys.
func TestRules(t *testing.T) {
	t.Parallel()
	for name, on := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, folder := open(t, on, holder), files(t)
			replace := []string{folder, ""}
			seen := func(want string) (version string) {
				t.Helper()
				var v versionView
				must(t, json.Unmarshal([]byte(s.want(0, []string{"rules", "show", "-name", "shop", "-json"}).out), &v))
				if v.Document != want {
					t.Errorf("it has %q, want %q", v.Document, want)
				}
				return fmt.Sprint(v.Version)
			}
			step := 0
			run := func(code int, args string, more ...string) answer {
				t.Helper()
				words := append(strings.Fields(strings.ReplaceAll(args, "FOLDER/", folder)), more...)
				a := s.want(code, words)
				step++
				text := fmt.Sprintf("%s\nexit code %d\n%s", args, a.code, a.out+a.errs)
				if words[1] != "push" && words[1] != "rollback" {
					text += s.want(code, append(words, "-json")).out
				}
				golden(t, fmt.Sprintf("rules-%02d-%s", step, words[1]), text, replace...)
				return a
			}
			put := func(code int, args string) { t.Helper(); run(code, args, because...) }
			run(0, "rules check FOLDER/first.yaml FOLDER/second.yaml")
			run(1, "rules check FOLDER/first.yaml FOLDER/bad.yaml")
			run(0, "rules check FOLDER/second.yaml -against env")
			run(1, "rules check FOLDER/strange.yaml -against env")
			run(1, "rules show -name shop")
			run(0, "rules history -name shop")
			run(1, "rules diff FOLDER/first.yaml -name shop")
			put(1, "rules push FOLDER/bad.yaml -name shop -seen 0")
			put(0, "rules push FOLDER/first.yaml -name shop -seen 0")
			first := seen(firstRules)
			replace = append(replace, `"`+first+`"`, `"FIRST"`, " "+first, " FIRST", "\n"+first+" ", "\nFIRST ")
			put(1, "rules push FOLDER/second.yaml -name shop -seen 0")
			seen(firstRules)
			run(0, "rules show -name shop")
			run(0, "rules diff FOLDER/first.yaml -name shop")
			run(1, "rules diff FOLDER/second.yaml -name shop")
			pushed := s.want(0, append([]string{"rules", "push", folder + "second.yaml", "-name", "shop", "-json", "-seen", first}, because...))
			second := seen(secondRules)
			if !strings.Contains(pushed.out, `"version": "`+second+`"`) {
				t.Errorf("pushed %s, and it says %s", second, pushed.out)
			}
			s.want(1, append([]string{"rules", "rollback", first, "-name", "shop", "-seen", first}, because...), "nothing was done", second)
			s.want(1, append([]string{"rules", "rollback", "7", "-name", "shop"}, because...), "does not have this version")
			s.want(0, append([]string{"rules", "rollback", first, "-name", "shop"}, because...), "Done")
			third := seen(firstRules)
			for version, name := range map[string]string{second: "SECOND", third: "THIRD"} {
				replace = append(replace, `"`+version+`"`, `"`+name+`"`, "\n"+version+" ", "\n"+name+" ")
			}
			run(0, "rules history -name shop")
			o := s.operator
			o.stdin = secondRules
			o.want(0, append([]string{"rules", "push", "-", "-name", "shop", "-seen", third}, because...), "Done")
			o.want(0, []string{"rules", "diff", "-", "-name", "shop"}, "no difference")
			log := s.want(0, []string{"log"})
			for text, n := range map[string]int{"push_rules": 4, "rollback_rules": 2, "ticket 7": 6, "changed": 2, "secret-key": 0} {
				if strings.Count(log.out, text) != n {
					t.Errorf("not %d times %q:\n%s", n, text, log.out)
				}
			}
			for _, text := range []string{"ada", "shop", "version " + third, "hash " + hashOf([]byte(firstRules)), "after version " + first} {
				if !strings.Contains(log.out, text) {
					t.Errorf("no %q in the log:\n%s", text, log.out)
				}
			}
		})
	}
}

// other has another process, as which this one acts, follow the rules shop with a limiter.
func (s *shop) other() (store.Store, *rules.Rules) {
	s.t.Helper()
	c := &call{command: &command{}, options: options{url: s.operator.store, prefix: "lk", schema: "lk"}}
	end, err := c.openStore()
	must(s.t, err)
	s.t.Cleanup(end)
	quiet := slog.New(slog.DiscardHandler)
	api, err := tokenbucket.New(c.store, "api", tokenbucket.PerHour(2))
	must(s.t, err)
	r, err := rules.Open(s.t.Context(), rules.Store(c.store, "shop"), rules.For(api), rules.Optional("seats"), rules.WithLogger(quiet),
		rules.Every(100*time.Millisecond))
	must(s.t, err)
	p, err := presence.Start(c.store, presence.Service("till"), presence.WithLogger(quiet), presence.WithRules(r))
	must(s.t, err)
	s.t.Cleanup(func() {
		_ = p.Stop(context.Background())
		_, _ = r.Close(), api.Close()
	})
	return c.store, r
}

// Rules that are stale in a process are found by the commands that look at the fleet, and no more when
// a good document is pushed.
func TestStaleRules(t *testing.T) {
	t.Parallel()
	s, folder := open(t, onRedis, holder), files(t)
	s.want(0, append([]string{"rules", "push", folder + "first.yaml", "-name", "shop", "-seen", "0"}, because...))
	other, r := s.other()
	shown := func(text string) {
		t.Helper()
		testpace.Eventually(t, 20*time.Second, "the fleet has the state: "+text, func() bool {
			return strings.Contains(s.run("processes").out, text)
		})
	}
	shown("shop current " + hashOf([]byte(firstRules)))
	s.want(0, []string{"processes", "-json"}, `"state": "current"`, `"source": "store"`)
	s.want(0, []string{"rules", "check", folder + "second.yaml", "-against", "env"},
		"second.yaml:8:3: semaphores.seats: 1 of 1 process with rules do not have it")
	_, ok, err := other.PutDocument(t.Context(), store.DocumentRequest{Space: "rules", Name: "shop", Data: []byte(badRules)})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	shown("shop stale " + hashOf([]byte(firstRules)) + ", ")
	s.want(1, []string{"now"}, "warning   rules shop (store) are stale in 1 process: till on ", "to do: mend the document")
	s.want(0, []string{"rules", "check", folder + "first.yaml", "-against", s.operator.store}, "till on ", "rules shop stale")
	s.want(1, append([]string{"rules", "push", folder + "second.yaml", "-name", "shop", "-seen", "7"}, because...), "nothing was done")
	var bad versionView
	must(t, json.Unmarshal([]byte(s.want(0, []string{"rules", "show", "-name", "shop", "-json"}).out), &bad))
	seen := fmt.Sprint(bad.Version)
	s.want(0, append([]string{"rules", "push", folder + "second.yaml", "-name", "shop", "-seen", seen}, because...), "Done")
	s.want(1, append([]string{"rules", "rollback", seen, "-name", "shop"}, because...), "version "+seen+":2:17: ", "given twice")
	shown("shop current " + hashOf([]byte(secondRules)))
	if a := r.Applied(); a.Version != "2" {
		t.Errorf("%+v", a)
	}
}

// A document that was not checked controls no terminal, and no line of a comparison.
func TestHostileRules(t *testing.T) {
	t.Parallel()
	s := open(t, onRedis, holder)
	text := "# lockkeeper rules " + `{"by":"\u001b[2Jada","why":"\u202e","at":"2026-01-02T03:04:05Z","id":"x"}` + "\n" + hostile + "\n"
	_, _, err := s.store.PutDocument(t.Context(), store.DocumentRequest{Space: "rules", Name: "shop", Data: []byte(text)})
	must(t, err)
	s.stdin = "x: \x1b[2J\u202e\nlimits: {}"
	for _, args := range [][]string{
		{"rules", "diff", "-", "-name", "shop"}, {"rules", "diff", "-", "-name", "shop", "-json"}, {"rules", "history", "-name", "shop"},
		{"rules", "show", "-name", "shop", "-json"}, {"rules", "history", "-name", "shop", "-json"}, {"rules", "check", "-"},
		{"rules", "check", "-", "-json"}, {"rules", "push", "-", "-name", "shop", "-seen", "0", "-why", "ticket 7", "-yes"},
		{"rules", "show", "-name", hostile}, {"rules", "check", hostile},
	} {
		harmless(t, args, s.run(args...))
	}
	if a := s.run("rules", "show", "-name", "shop"); a.out != hostile+"\n" { // into a file
		t.Errorf("%q", a.out)
	} else {
		harmless(t, nil, answer{errs: a.errs})
	}
}

func TestDiff(t *testing.T) {
	t.Parallel()
	lines := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprint("line ", i))
		}
		return all
	}
	long := strings.Join(lines(20), "\n") + "\n"
	for _, c := range []struct{ before, after, want string }{
		{"", "", ""},
		{"", "a\nb\n", "+ a\n+ b\n"},
		{"a\nb\n", "", "- a\n- b\n"},
		{"a\nb\nc\n", "a\nB\nc\n", "  a\n- b\n+ B\n  c\n"},
		{"a\n\nb\n", "a\nb\n", "  a\n-\n  b\n"},
		{"a\n", "a \n", "- a\n+ \"a \"\n"},
		{"a\r\n", "a\n", "- \"a\\r\"\n+ a\n"},
		{"a\n", "a", ""},
		{"a\nb\nc\n", "c\na\nb\n", "+ c\n  a\n  b\n- c\n"},
		{long, strings.Replace(long, "line 9\n", "line nine\n", 1), "...\n  line 7\n  line 8\n- line 9\n+ line nine\n  line 10\n  line 11\n...\n"},
		{long, "first\n" + long, "+ first\n  line 0\n  line 1\n...\n"},
	} {
		var b strings.Builder
		all := diff([]byte(c.before), []byte(c.after))
		printDiff(printer{&b}, all)
		if b.String() != c.want {
			t.Errorf("%q, %q: got\n%s\nwant\n%s", c.before, c.after, b.String(), c.want)
		}
	}
	// Each text is what its lines give, also beyond the bound of the comparison.
	before, after := strings.Join(lines(5000), "\n"), "x\n"+strings.Join(lines(5000)[1:], "\n")+"\ny"
	var a, b []string
	for _, line := range diff([]byte(before), []byte(after)) {
		if line.Op != "+" {
			a = append(a, line.Text)
		}
		if line.Op != "-" {
			b = append(b, line.Text)
		}
	}
	if strings.Join(a, "\n") != before || strings.Join(b, "\n") != after {
		t.Error("lines are lost")
	}
}
