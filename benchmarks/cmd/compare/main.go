// Compare measures Lockkeeper beside other libraries, and beside the fewest steps with which a
// server can do the same, and writes RESULTS.md, results.json and charts.
//
//	go run ./cmd/compare [-quick | -tiny | -render] [-only regexp [-add]] [-rounds 3] [-machine name] [-out dir]
//
// It needs redis-server in the PATH and PostgreSQL, and starts servers of its own on free ports.
// Rows about etcd or ZooKeeper are left out where that is not installed.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/consoles"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/coordination"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/delays"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/idempotency"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/locks"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/memory"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/middleware"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/outage"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/overload"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/postgres"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/scaling"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/semaphores"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/tokens"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

func main() {
	worker.Main(slices.Concat(locks.Jobs(), semaphores.Jobs(), outage.Jobs(), postgres.Jobs(), coordination.Jobs(), delays.Jobs())...)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "compare: %v\n", err)
		os.Exit(1)
	}
}

// sections returns all sections, in the order of the report.
func sections() []bench.Section {
	var all []bench.Section
	for _, some := range []func() []bench.Section{
		tokens.Sections, memory.Sections, middleware.Sections, locks.Sections, semaphores.Sections, idempotency.Sections,
		scaling.Sections, outage.Sections, postgres.Sections, coordination.Sections, delays.Sections, consoles.Sections, overload.Sections,
	} {
		all = append(all, some()...)
	}
	return all
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	var (
		quick  = flags.Bool("quick", false, "measure for about three minutes instead of thirty")
		tiny   = flags.Bool("tiny", false, "only show that everything runs")
		only   = flags.String("only", "", "run the sections whose names match this regular `expression`")
		add    = flags.Bool("add", false, "keep the other sections of the results that are there")
		rounds = flags.Int("rounds", 0, "how often every contender runs: 3, or 1 with -tiny, if not set")
		render = flags.Bool("render", false, "measure nothing, and write RESULTS.md of the results that are there anew")
		name   = flags.String("machine", "", "make the run the published one of the machine of this `name`, by whose median targets are judged")
		out    = flags.String("out", "results", "the `directory` to write into")
	)
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(sections(), *only)
	if err != nil {
		return err
	}
	o := bench.Options{
		Rounds: cmp.Or(*rounds, 3), Out: *out, Log: os.Stderr,
		Command: command(flags), Machine: *name, Add: *add,
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *rounds < 0:
		return errors.New("-rounds is negative")
	case *quick && *tiny, *render && (*quick || *tiny):
		return errors.New("-quick, -tiny and -render exclude each other")
	case *name != "" && (*quick || *tiny || *only != "" && !*add):
		return errors.New("-machine wants a full run, or -add")
	case *render:
		return bench.Render(o, sections())
	case *quick:
		o.Setting = bench.Quick
	case *tiny:
		o.Setting, o.Rounds = bench.Tiny, cmp.Or(*rounds, 1)
	}
	return bench.Run(ctx, o, chosen)
}

// command returns the command that repeats the run, without the directory of its results.
func command(flags *flag.FlagSet) string {
	text := "go run ./cmd/compare"
	flags.Visit(func(f *flag.Flag) {
		switch value := f.Value.String(); {
		case f.Name == "out", f.Name == "machine", f.Name == "add":
		case f.Name == "only":
			text += " -only '" + value + "'"
		case value == "true":
			text += " -" + f.Name
		default:
			text += fmt.Sprintf(" -%s %s", f.Name, value)
		}
	})
	return text
}

func choose(all []bench.Section, only string) ([]bench.Section, error) {
	expression, err := regexp.Compile(only)
	if err != nil {
		return nil, fmt.Errorf("-only: %w", err)
	}
	var chosen []bench.Section
	var names []string
	for _, s := range all {
		names = append(names, s.Name)
		if expression.MatchString(s.Name) {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("-only: no section matches; there are %s", strings.Join(names, ", "))
	}
	return chosen, nil
}
