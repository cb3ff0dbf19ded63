package main

import (
	"context"
	"flag"
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
	if err := flags.Parse([]string{"-quick", "-out", "/somewhere", "-only", "a|b", "-rounds", "5"}); err != nil {
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
	for _, args := range []string{"-quick -tiny", "-rounds -1", "-no-such-flag", "-tiny extra", "-only ("} {
		if err := run(context.Background(), strings.Fields(args)); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
