package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

var update = flag.Bool("update", false, "write the golden outputs")

// asCommand is the environment variable with which the test binary is the command.
const asCommand = "LOCKKEEPER_TEST_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	postgrestest.Main(m)
}

// operator runs commands, each as a process of its own.
type operator struct {
	t     testing.TB
	store string // its URL
	stdin string
	// patient has the store reply in time on a busy machine.
	patient bool
}

// answer is what a command has printed.
type answer struct {
	code      int
	out, errs string
}

func (o operator) command(args ...string) *exec.Cmd {
	if o.patient {
		args = append(slices.Clip(args), "-timeout", "30s")
	}
	cmd := exec.CommandContext(o.t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", environment+"="+o.store, "GORACE=atexit_sleep_ms=0")
	return cmd
}

func (o operator) run(args ...string) answer {
	o.t.Helper()
	var out, errs bytes.Buffer
	cmd := o.command(args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(o.stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		o.t.Fatal(err)
	}
	return answer{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

// want runs a command, and checks its exit code, and that it prints texts.
func (o operator) want(code int, args []string, texts ...string) answer {
	o.t.Helper()
	a := o.run(args...)
	if a.code != code {
		o.t.Errorf("%q: exit code %d, want %d\n%s%s", args, a.code, code, a.out, a.errs)
	}
	for _, text := range texts {
		if !strings.Contains(a.out+a.errs, text) {
			o.t.Errorf("%q: no %q in\n%s%s", args, text, a.out, a.errs)
		}
	}
	return a
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// golden compares a text with a file, after these replacements, each of a text by another.
func golden(t testing.TB, file, text string, replace ...string) {
	t.Helper()
	text = normal(strings.NewReplacer(replace...).Replace(text))
	file = filepath.Join("testdata", file+".golden")
	if *update {
		must(t, os.MkdirAll("testdata", 0o750))
		must(t, os.WriteFile(file, []byte(text), 0o600))
		return
	}
	want, err := os.ReadFile(file)
	must(t, err)
	if string(want) != text {
		t.Errorf("%s: got\n%s\nwant\n%s", file, text, want)
	}
}

// normal replaces what differs from run to run: times, fences, and the spaces that align columns.
func normal(text string) string {
	for _, r := range []struct{ is, by string }{
		{`-?\d+(\.\d)? (µs|ms|s|min|h \d+ min|d)\b`, "TIME"},
		{`(_ns": )-?\d+`, "${1}0"},
		{`("(up|age)_ns": )\d+`, "${1}0"},
		{`"at": "[^"]+"`, `"at": "TIME"`},
		{`"fence": "\d+"`, `"fence": "FENCE"`},
		{`\b\d{12,}\b`, "FENCE"},
		{`"(pid|calls)": \d+`, `"$1": 0`},
		{`127\.0\.0\.1:\d+`, "ADDRESS"},
		{`(version("| )[": ]+)[\w-]{22}`, "${1}RECORD"},
		{`"id": "[\w-]{16,}"`, `"id": "RANDOM"`},
		{`[▁▂▃▄▅▆▇█ ]*[▁▂▃▄▅▆▇█]+`, "  CHART"},
		{`(\S)   +`, "$1  "},
	} {
		text = regexp.MustCompile(r.is).ReplaceAllString(text, r.by)
	}
	return text
}

// A command line that cannot be carried out says so, and changes nothing.
func TestUsage(t *testing.T) {
	t.Parallel()
	o := operator{t: t}
	golden(t, "help", o.want(0, nil).out)
	o.want(0, []string{"version"}, "lockkeeper "+core.Version)
	golden(t, "help-locks", o.want(0, []string{"help", "locks"}).out)
	golden(t, "help-rules", o.want(0, []string{"help", "rules"}).out)
	if a, b := o.run("help", "top"), o.run("top", "-h"); a != b || a.code != 0 {
		t.Errorf("%+v, %+v", a, b)
	}
	for _, cmd := range commands() {
		a := o.want(0, append([]string{"help"}, cmd.words()...), "usage: "+cmd.usage())
		for line := range strings.Lines(a.out) {
			if len(strings.TrimRight(line, "\n")) > width && !strings.Contains(line, "usage:") {
				t.Errorf("help %s: longer than %d columns: %s", cmd.name, width, line)
			}
		}
	}
	release := func(more ...string) []string { return append([]string{"locks", "release", "stock", "key"}, more...) }
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"nothing"}, "unknown command"},
		{[]string{"help", "nothing"}, "no command"},
		{[]string{"locks"}, "unknown command"},
		{[]string{"locks", "show", "stock"}, "usage: lockkeeper locks show [flags] NAME KEY"},
		{[]string{"locks", "ls", "a", "b"}, "2 arguments"},
		{[]string{"locks", "ls", "-fence", "1"}, "not defined: -fence"},
		{[]string{"locks", "ls"}, "say -store or set LOCKKEEPER_STORE"},
		{[]string{"locks", "ls", "-store", "mysql://host"}, "postgres:"},
		{[]string{"locks", "ls", "-store", "redis+nothing://host"}, "redis+cluster"},
		{[]string{"locks", "ls", "-store", "redis://h", "-prefix", "{}"}, "prefix"},
		{[]string{"locks", "ls", "-store", "redis://h", "-store-secret-file", "/nothing"}, "/nothing"},
		{release("-yes"), "say -why"},
		{release("-yes", "-why", "x", "-fence", "7"), "3 to 500"},
		{release("-why", "it hangs", "-fence", "7"), "say -yes"},
		{release("-why", "it hangs", "-yes"), "needs -fence"},
		{release("-why", "it hangs", "-yes", "-fence", "x", "-store", "redis://127.0.0.1:1"), "is no fence"},
		{[]string{"limits", "hold", "api", "key", "-why", "floods", "-yes", "-for", "0s", "-store",
			"redis://127.0.0.1:1"}, "720h"},
		{[]string{"operations", "resolve", "orders", "x", "-why", "seen", "-yes", "-version", "v", "-store",
			"redis://127.0.0.1:1"}, "never-happened"},
		{[]string{"tasks", "cancel", "timers", "key", "-why", "seen", "-yes"}, "needs -task"},
		{[]string{"rules", "check"}, "0 arguments"},
		{[]string{"rules", "check", "/nothing.yaml"}, "/nothing.yaml"},
		{[]string{"rules", "check", "-", "-against", "env"}, "set LOCKKEEPER_STORE"},
		{[]string{"rules", "push", "-", "-name", "shop", "-yes", "-seen", "0"}, "say -why"},
		{[]string{"rules", "push", "-", "-name", "shop", "-yes", "-why", "ticket 7"}, "needs -seen"},
		{[]string{"rules", "push", "-", "-name", "shop", "-yes", "-why", "ticket 7", "-seen", "-1", "-store", "redis://127.0.0.1:1"},
			"is no version"},
		{[]string{"rules", "show", "-store", "redis://127.0.0.1:1"}, "say -name"},
		{[]string{"rules", "show", "-name", "shop@1", "-store", "redis://127.0.0.1:1"}, "has an @"},
		{[]string{"rules", "rollback", "x", "-name", "shop", "-yes", "-why", "ticket 7", "-store", "redis://127.0.0.1:1"},
			"is no version"},
	} {
		if a := o.want(exitFailed, test.args, test.says); a.out != "" {
			t.Errorf("%q prints %q", test.args, a.out)
		}
	}
}

// The password of a URL is in no message.
func TestAPasswordIsNotPrinted(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"redis://user:secret%zz@host", "redis://user:sec\x7fret@host", "redis://user:1secret/2@host",
		"redis+cluster://u:secret@h:x",
		"redis+sentinel://u:secret@h?master_name=%zz", "postgres://u:secret@h:x/db", "postgres://u:secret%zz@h/db",
		"u:secret@h", "secret@h",
		"redis://user:secret@127.0.0.1:1", "postgres://user:secret@127.0.0.1:1/db",
	} {
		a := operator{t: t, store: url}.want(exitFailed, []string{"locks", "ls", "stock", "-timeout", "100ms"})
		if strings.Contains(a.errs, "sec") {
			t.Errorf("%q: %s", url, a.errs)
		}
	}
}

// Flags may stand anywhere, and "--" ends them.
func TestFlagsAndArguments(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-json", "stock", "-show-keys", "-key", "--timeout=1s"}, {"stock", "--json", "--show-keys", "--", "-key"},
		{"-json", "-show-keys", "--", "stock", "-key"},
	} {
		c := &call{}
		rest, err := c.find(append([]string{"locks", "show"}, args...))
		must(t, err)
		if args[3] == "-key" { // it is no flag of this command
			if err := c.parse(rest); err == nil {
				t.Errorf("%q: a flag that does not exist", args)
			}
			continue
		}
		if err := c.parse(rest); err != nil || len(c.args) != 2 || c.args[1] != "-key" || !c.json || !c.showKeys {
			t.Errorf("%q: %v, %+v", args, err, c)
		}
	}
}

// A store that cannot be reached is not one without findings.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	commands := [][]string{{"doctor"}, {"locks", "release", "stock", "key", "-why", "it hangs", "-yes", "-fence", "7"}}
	for url, commands := range map[string][][]string{
		"redis://127.0.0.1:1": append(commands, []string{"now"}, []string{"top"}, []string{"log"},
			[]string{"processes"}, []string{"locks", "ls"},
			[]string{"rules", "show", "-name", "shop"}, []string{"rules", "diff", "-", "-name", "shop"},
			[]string{"rules", "history", "-name", "shop"}, []string{"rules", "check", "-", "-against", "env"},
			[]string{"rules", "push", "-", "-name", "shop", "-seen", "0", "-why", "ticket 7", "-yes"},
			[]string{"rules", "rollback", "1", "-name", "shop", "-why", "ticket 7", "-yes"},
			[]string{"permits", "ls", "seats"}, []string{"limits", "show", "api", "key"}, []string{"operations", "ls",
				"orders"}, []string{"tasks", "ls", "timers"}),
		"redis+cluster://127.0.0.1:1": commands, "redis+sentinel://127.0.0.1:1?master_name=shop": commands[1:],
		"postgres://127.0.0.1:1/shop?sslmode=disable": commands,
	} {
		o := operator{t: t, store: url}
		for _, args := range commands {
			if a := o.want(exitFailed, append(args, "-timeout", "200ms"), "lockkeeper "+args[0]); a.out != "" ||
				strings.Count(a.errs, "\n") != 1 {
				t.Errorf("%q prints %q", args, a.out+a.errs)
			}
		}
	}
}
