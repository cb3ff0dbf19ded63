package main

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

func TestSectionsAreComplete(t *testing.T) {
	seen := make(map[string]bool)
	for _, s := range sections() {
		if seen[s.Name] {
			t.Errorf("two sections are named %s", s.Name)
		}
		seen[s.Name] = true
		if s.Title == "" || s.About == "" || s.Full <= 0 || s.Run == nil {
			t.Errorf("section %s is incomplete", s.Name)
		}
	}
}

// The command of a run has the flags to repeat it, without the directory of its results.
func TestCommandOfARun(t *testing.T) {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	flags.Bool("quick", false, "")
	flags.Int("rounds", 0, "")
	flags.String("only", "", "")
	flags.String("out", "", "")
	flags.String("machine", "", "")
	if err := flags.Parse([]string{"-quick", "-out", "/somewhere", "-machine", "A", "-only", "a|b", "-rounds", "5"}); err != nil {
		t.Fatal(err)
	}
	if got, want := command(flags), "go run ./cmd/compare -only 'a|b' -quick -rounds 5"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestChoose(t *testing.T) {
	all := []bench.Section{{Name: "tokens"}, {Name: "memory"}, {Name: "locks"}}
	for only, want := range map[string]string{"": "tokens memory locks", "tokens|lo": "tokens locks", "^memory$": "memory"} {
		chosen, err := choose(all, only)
		var names []string
		for _, s := range chosen {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != want || err != nil {
			t.Errorf("%q: %s, %v, want %s", only, got, err, want)
		}
	}
	for _, only := range []string{"nothing", "("} {
		if _, err := choose(all, only); err == nil {
			t.Errorf("%q chooses something", only)
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for _, args := range []string{"-quick -tiny", "-rounds -1", "-no-such-flag", "-tiny extra", "-only (", "-tiny -render", "-machine A -tiny",
		"-machine A -only tokens", "-render -out /nowhere"} {
		if err := run(context.Background(), strings.Fields(args)); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}

// The published page is that of the published results with the present targets, all of which are
// reached by the median of the published machines: after a change of a target, `go run ./cmd/compare
// -render` writes the page anew. A section that the published run did not have is not judged.
func TestPublishedTargets(t *testing.T) {
	published, dir := os.DirFS("../../results"), t.TempDir()
	if err := os.CopyFS(dir, published); err != nil {
		t.Fatal(err)
	}
	if err := run(context.Background(), []string{"-render", "-out", dir}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"RESULTS.md", "results.json"} {
		is, err := fs.ReadFile(published, name)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(is, want) {
			t.Errorf("%s is not what -render writes", name)
		}
	}
	page, err := fs.ReadFile(published, "RESULTS.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## Targets\n")
	if !ok {
		t.Fatal("the page has no targets")
	}
	for _, s := range sections() {
		if !bytes.Contains(page, []byte("\n## "+s.Title+"\n")) {
			t.Logf("section %s is newer than the published run", s.Name)
			continue
		}
		for _, target := range s.Targets {
			row := "\n| " + target.What + " | "
			_, rest, ok := strings.Cut(table, row)
			line, _, _ := strings.Cut(rest, "\n")
			if !ok || !strings.Contains(line, " | reached | ") {
				t.Errorf("section %s: %s: %q is not reached", s.Name, target.What, line)
			}
		}
	}
}

var update = flag.Bool("update", false, "write the tables of docs/coming-from.md anew")

// Each peer has a table in the page for its users, which is that of the published results.
func TestComingFrom(t *testing.T) {
	const page = "../../../docs/coming-from.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := bench.PeerTables("../../results")
	if err != nil {
		t.Fatal(err)
	}
	now := string(text)
	for _, table := range tables {
		begin, end := "<!-- table of "+table.Name+": go test ./cmd/compare -run TestComingFrom -update -->\n", "<!-- end -->\n"
		before, rest, ok := strings.Cut(now, begin)
		_, after, ended := strings.Cut(rest, end)
		if !ok || !ended {
			t.Errorf("the page has no table of %s", table.Name)
			continue
		}
		now = before + begin + cmp.Or(table.Markdown, "Not in the last published run.\n") + end + after
	}
	switch {
	case now == string(text):
	case *update:
		if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Error("docs/coming-from.md has other figures than the results: run it with -update")
	}
}
