// Torture runs fleets of processes that lock, acquire, take tokens, and run operations and tasks, while
// processes, network and servers fail; checks what they did; and writes TORTURE.md. It exits with 1
// if a promise was broken.
//
//	go run ./cmd/torture [-store redis,cluster,sentinel,postgres,etcd,zookeeper,memory] [-duration 3m] [-tiny] [-out dir]
//
// It needs redis-server in the PATH and PostgreSQL, and starts servers of its own on free ports. A
// run without -store leaves out etcd and ZooKeeper where they are not installed.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/coordserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/report"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

func main() {
	workload.Main()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintf(os.Stderr, "torture: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, log io.Writer) error {
	flags := flag.NewFlagSet("torture", flag.ContinueOnError)
	var (
		stores = flags.String("store", strings.Join(site.Kinds(), ","), "the `stores`, joined by commas, one after the other")
		names  = flags.String("faults", "", "inject the faults whose names match this regular `expression`")
		out    = flags.String("out", "results", "the `directory` to write into")
		tiny   = flags.Bool("tiny", false, "only show that everything runs, for 10 s on each store")
		bug    = flags.String("bug", "", "plant a `bug`, to see that it is found: split, generous, hasty or forget")
		o      = torture.Options{Longest: 5 * time.Second, Rest: 3 * time.Second, Out: log}
	)
	flags.DurationVar(&o.Duration, "duration", 3*time.Minute, "for how `long`, on each store")
	flags.BoolVar(&o.Once, "once", false, "inject each fault once, however long that takes")
	flags.StringVar(&o.Subjects, "subjects", "", "work with the subjects whose names match this regular `expression`, such as tasks|cancels")
	flags.IntVar(&o.Tasks, "tasks", 0, "go on until there were that many tasks, and as many that were cancelled when they were due")
	flags.IntVar(&o.Workers, "workers", 4, "the number of processes")
	flags.Uint64Var(&o.Seed, "seed", uint64(time.Now().UnixNano()), "of the choice of faults") //nolint:gosec // not negative
	if err := flags.Parse(args); err != nil {
		return err
	}
	o.Bug = workload.Bug(*bug)
	var err error
	if o.Faults, err = regexp.Compile(*names); err != nil {
		return fmt.Errorf("-faults: %w", err)
	}
	switch {
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.Workers < 1 || o.Workers > 64:
		return errors.New("-workers is not between 1 and 64")
	case o.Duration <= 0:
		return errors.New("-duration is not positive")
	}
	switch o.Bug {
	case "", workload.Split, workload.Generous, workload.Hasty, torture.Forget:
	default:
		return fmt.Errorf("-bug: no bug %q", o.Bug)
	}
	if *tiny {
		o.Duration, o.Workers, o.Longest, o.Rest = 10*time.Second, 3, 300*time.Millisecond, 200*time.Millisecond
		o.Untimed = true // other tests may keep the machine busy
		o.Subjects = cmp.Or(o.Subjects, workload.WithoutTasks())
	}
	if err := os.MkdirAll(*out, 0o755); err != nil { // before the run, not after it
		return err
	}
	named := false
	flags.Visit(func(f *flag.Flag) { named = named || f.Name == "store" })
	workload.Quiet()
	var runs []*report.Run
	violations := 0
	for store := range strings.SplitSeq(*stores, ",") {
		o.Store = store
		_, _ = fmt.Fprintf(log, "\n%s, seed %d\n", store, o.Seed)
		r, err := torture.Run(ctx, o)
		if errors.Is(err, coordserver.ErrNotInstalled) && !named {
			_, _ = fmt.Fprintln(log, err)
			continue
		}
		if err != nil {
			return err
		}
		runs = append(runs, r)
		violations += len(r.Findings.Violations)
		for _, v := range r.Findings.Violations {
			_, _ = fmt.Fprintf(log, "VIOLATION: %s\n", r.Describe(v))
		}
	}
	if err := write(filepath.Join(*out, "TORTURE.md"), command(flags, o.Seed), runs); err != nil {
		return err
	}
	if violations > 0 {
		return fmt.Errorf("%d violations", violations)
	}
	return nil
}

// command returns the command that repeats the run, without the directory of its results.
func command(flags *flag.FlagSet, seed uint64) string {
	text := "go run ./cmd/torture"
	flags.Visit(func(f *flag.Flag) {
		switch value := f.Value.String(); {
		case f.Name == "out", f.Name == "seed":
		case value == "true":
			text += " -" + f.Name
		default:
			text += fmt.Sprintf(" -%s '%s'", f.Name, value)
		}
	})
	return fmt.Sprintf("%s -seed %d", text, seed)
}

func write(path, command string, runs []*report.Run) error {
	f, err := os.Create(path) //nolint:gosec // where the user says
	if err != nil {
		return err
	}
	err = report.Write(f, command, runs)
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}
