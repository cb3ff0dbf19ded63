// Package torture runs fleets of processes under faults, and checks what they did.
package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/check"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/faults"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/fleet"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/report"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Options say what a run is.
type Options struct {
	Store    string
	Duration time.Duration // of the time in which faults are injected
	Once     bool          // each fault is injected once instead, however long that takes
	Untimed  bool          // nothing is judged by how long calls took, or how many failed
	Workers  int
	Seed     uint64
	Faults   *regexp.Regexp // names of those to inject; nil for all
	// Subjects is a regular expression of the names of those to work with; empty for all.
	Subjects string
	// Tasks is how many tasks have to be run, and how many put and cancelled when they are due,
	// before the run ends.
	Tasks int
	// Longest is the longest duration of a fault, where that can be chosen, and Rest the longest
	// time between two.
	Longest, Rest time.Duration
	// Bug is planted, to see that it is found: Forget, or one of the workload in every other
	// worker.
	Bug workload.Bug
	Out io.Writer // gets one line for each fault
}

// Forget is a bug of the server, which loses its state again and again while it says nothing.
const Forget workload.Bug = "forget"

const (
	// warmUp is how long a fleet works before the first fault, and after the last one.
	warmUp = time.Second
	// patience is how long workers may take to end.
	patience = 15 * time.Second
	// drains is how long the tasks may take to end after the last fault.
	drains = time.Minute
)

// Run runs a fleet on a store, and returns what it did and what was wrong. If ctx ends, so does the
// run, with its error: nothing is left running.
func Run(ctx context.Context, o Options) (*report.Run, error) {
	subjects, err := workload.SubjectsOf(o.Store, o.Subjects)
	has := func(name string) bool {
		return slices.ContainsFunc(subjects, func(s workload.Subject) bool { return s.Name == name })
	}
	switch {
	case err != nil:
	case len(subjects) == 0:
		err = fmt.Errorf("-subjects: none of those of %s has such a name", o.Store)
	case o.Tasks > 0 && (!has(workload.TasksName) || !has(workload.CancelsName)):
		err = fmt.Errorf("-tasks: %s has no tasks, or they are not among the subjects", o.Store)
	}
	if err != nil {
		return nil, err
	}
	s, err := site.Start(ctx, o.Store, o.Workers)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	all := slices.DeleteFunc(faults.For(s), func(f faults.Fault) bool { return o.Faults != nil && !o.Faults.MatchString(f.Name) })
	if len(all) == 0 {
		return nil, fmt.Errorf("-faults: none of those of %s has such a name", o.Store)
	}
	r := &run{
		Options: o, site: s, all: all, subjects: subjects, log: history.NewLog(), started: history.Now(),
		rand: rand.New(rand.NewPCG(o.Seed, 0)), //nolint:gosec // no secret
	}
	r.fleet, err = fleet.Start(o.Workers, r.log, func(i int) workload.Job {
		job := workload.Job{Seed: o.Seed + uint64(i)<<32, Store: s.Address(i), Subjects: o.Subjects} //nolint:gosec // not negative
		if i%2 == 1 && o.Bug != Forget {
			job.Bug = o.Bug
		}
		return job
	})
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if o.Bug == Forget {
		go r.forget(ctx, began.Add(o.Duration))
	}
	r.torture(ctx)
	r.sleep(ctx, warmUp)
	r.notice(ctx)
	stopped := r.drain(ctx)
	stopped = errors.Join(stopped, r.fleet.Stop(patience))
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if s.Postgres != nil {
		effects, err := s.Postgres.Effects(ctx)
		if err != nil {
			return nil, err
		}
		for _, e := range effects {
			r.log.Add("", e)
		}
	}
	result := &report.Run{
		Store: o.Store, Version: s.Version, Missing: s.Missing, Workers: o.Workers, Seed: o.Seed, Took: time.Since(began),
		Injected: r.injected,
	}
	for _, f := range all {
		result.Faults = append(result.Faults, report.Fault{Name: f.Name, About: f.About})
	}
	r.log.Snapshot(func(records map[history.Place]*history.Record) {
		result.Findings = check.Check(records, r.subjects, r.faults(), check.Options{Workers: o.Workers, Untimed: o.Untimed})
		result.Subjects = report.Counts(records, r.subjects)
	})
	for _, e := range r.log.Wrong() {
		result.Findings.Violations = append(result.Findings.Violations, check.Violation{At: e.At, Text: e.Text})
	}
	if stopped != nil {
		result.Findings.Violations = append(result.Findings.Violations, check.Violation{At: history.Now(), Text: stopped.Error()})
	}
	return result, nil
}

// run is a run in progress.
type run struct {
	Options
	site     *site.Site
	fleet    *fleet.Fleet
	log      *history.Log
	all      []faults.Fault
	subjects []workload.Subject
	rand     *rand.Rand
	injected []report.Injected
	masters  string // after the last fault

	started, warm int64
}

// faults returns what was injected, and before that the start of the processes, in which little is
// as it is later.
func (r *run) faults() (all []check.Fault) {
	all = append(all, check.Fault{Name: "start", From: r.started, To: r.warm})
	for _, i := range r.injected {
		all = append(all, i.Fault)
	}
	return all
}

// torture injects one fault after the other: all of them in a random order, and then again.
func (r *run) torture(ctx context.Context) {
	target := &faults.Target{Site: r.site, Fleet: r.fleet, Rand: r.rand, Longest: r.Longest}
	r.sleep(ctx, warmUp)
	r.warm = history.Now()
	r.masters = r.names(ctx)
	for end := time.Now().Add(r.Duration); ; {
		for _, i := range r.rand.Perm(len(r.all)) {
			if ctx.Err() != nil || time.Now().After(end) && r.enough() && !r.Once {
				return
			}
			r.inject(ctx, target, r.all[i])
		}
		if r.Once {
			return
		}
	}
}

// enough reports whether there were as many tasks as there have to be. Each cancel is of another
// task that was put.
func (r *run) enough() bool {
	puts, cancels := r.log.Tasks()
	return puts-cancels >= r.Tasks && cancels >= r.Tasks
}

// drain waits until all tasks have ended, and adds those that are buried to the history.
func (r *run) drain(ctx context.Context) error {
	if !slices.ContainsFunc(r.subjects, func(s workload.Subject) bool { return s.Kind == workload.Task }) {
		return nil
	}
	for i := range r.fleet.Size() {
		_ = r.fleet.Worker(i).Order(workload.Order{Drain: true}) // one that has ended is found when it is stopped
	}
	ctx, cancel := context.WithTimeoutCause(ctx, drains, fmt.Errorf("not within %v", drains))
	defer cancel()
	buried, err := workload.Drain(ctx, workload.Job{Store: r.site.Address(0)}, r.subjects)
	for _, e := range buried {
		r.log.Add("", e)
	}
	return err
}

// inject injects a fault, and looks at what follows.
func (r *run) inject(ctx context.Context, t *faults.Target, f faults.Fault) {
	r.notice(ctx)
	in := report.Injected{Fault: check.Fault{
		Name: f.Name, From: history.Now(), Lost: f.Lost, Emptied: f.Emptied,
		Stale: f.Stale, Replies: f.Replies, Timeout: r.site.Timeout(),
	}}
	end := func(int64) time.Duration { return 0 }
	if f.Stale || f.Replies {
		end = r.watch(ctx)
	}
	hit, err := f.Inject(ctx, t)
	in.Failover, in.Emptied = hit.Failover, in.Emptied || hit.Failover
	in.From = max(in.From, hit.From)
	in.Slowest = max(end(in.From), hit.Away)
	if ctx.Err() != nil {
		return
	}
	in.To, in.Target, in.Hits, in.Step, in.Turned, in.Err = history.Now(), hit.Target, hit.Count, hit.Step, hit.Turned, err
	now := r.names(ctx)
	in.Lost = in.Lost || now != r.masters && !f.Moves
	r.masters = now
	r.sleep(ctx, r.Rest/2+time.Duration(r.rand.Int64N(int64(r.Rest/2))))
	r.log.Snapshot(func(records map[history.Place]*history.Record) {
		in.Gap = check.Longest(records, r.subjects, in.From, history.Now())
	})
	r.injected = append(r.injected, in)
	r.print(in)
}

// watch connects to the server again and again, until end is called, which returns how long that
// took at most since a time.
func (r *run) watch(ctx context.Context) (end func(since int64) (slowest time.Duration)) {
	ctx, cancel := context.WithCancel(ctx)
	took := make(map[int64]time.Duration)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			began := history.Now()
			err := r.site.Reply(ctx)
			took[began] = time.Duration(history.Now() - began)
			if err != nil && ctx.Err() == nil {
				took[began] = time.Hour
			}
			r.sleep(ctx, 50*time.Millisecond)
		}
	})
	return func(since int64) (slowest time.Duration) {
		cancel()
		running.Wait()
		for began, d := range took {
			if began >= since {
				slowest = max(slowest, d)
			}
		}
		return slowest
	}
}

// notice looks whether there are other masters than right after the last fault: then that one has
// lost state, until now.
func (r *run) notice(ctx context.Context) {
	now := r.names(ctx)
	if last := len(r.injected) - 1; last >= 0 && now != r.masters {
		r.injected[last].Lost, r.injected[last].To = true, history.Now()
	}
	r.masters = now
}

// names names the masters.
func (r *run) names(ctx context.Context) string {
	var all []string
	for _, s := range r.site.Masters(ctx) {
		all = append(all, s.Addr())
	}
	return strings.Join(all, " ")
}

func (r *run) print(in report.Injected) {
	text := fmt.Sprintf("%-26s %-22s %7.2f s  gap %7.3f s  %s",
		in.Name, in.Target, float64(in.To-in.From)/1e9, in.Gap.Length().Seconds(), in.Gap.Place.Subject)
	if in.Hits > 1 {
		text += fmt.Sprintf("  %d hit", in.Hits)
	}
	if in.Stale || in.Replies {
		text += fmt.Sprintf("  new connections within %v", in.Slowest.Round(time.Millisecond))
	}
	if in.Lost {
		text += "  (state lost)"
	} else if in.Emptied {
		text += "  (buckets emptied)"
	}
	if r.Tasks > 0 {
		puts, cancels := r.log.Tasks()
		text += fmt.Sprintf("  %d tasks, %d cancelled", puts-cancels, cancels)
	}
	if in.Err != nil {
		text += "  FAILED: " + in.Err.Error()
	}
	_, _ = fmt.Fprintln(r.Out, text)
}

func (r *run) sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// forget flushes the servers until a time, and does not say so.
func (r *run) forget(ctx context.Context, until time.Time) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for now := range tick.C {
		if now.After(until) || ctx.Err() != nil {
			return
		}
		_ = r.site.Forget(ctx)
	}
}
