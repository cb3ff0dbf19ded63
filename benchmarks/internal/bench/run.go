package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Options are those of a run.
type Options struct {
	Setting Setting
	Rounds  int    // at least 1
	Out     string // the directory that the report is written into
	Log     io.Writer
	Command string // how to run the same again, for the report
	Machine string // makes the run the published one of a machine of this name, unless empty
	Add     bool   // keeps the other sections of the report in Out
}

// Run runs the sections one after the other, and writes the report. An error ends its section, and
// not the others: the report is useful without it.
func Run(ctx context.Context, o Options, sections []Section) error {
	r := report{Setting: o.Setting.String(), Rounds: o.Rounds, Command: o.Command, Began: time.Now().UTC(), Machine: machine(ctx), Modules: modules()}
	var failure error
	for i, section := range sections {
		began := time.Now()
		b := &B{setting: o.Setting, rounds: o.Rounds, section: section, log: o.Log, random: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
		b.left = func() time.Duration {
			left := max(estimate(o, section)-time.Since(began), 0)
			for _, s := range sections[i+1:] {
				left += estimate(o, s)
			}
			return left
		}
		b.progress("section %d of %d begins", i+1, len(sections))
		err := section.Run(ctx, b)
		b.end()
		if err != nil {
			err = fmt.Errorf("section %s: %w", section.Name, err)
			b.Note(fmt.Sprintf("The section ended early: %v.", err))
			if failure == nil {
				failure = err
			}
		}
		r.Sections = append(r.Sections, b.report(time.Since(began)))
		if ctx.Err() != nil {
			break
		}
	}
	r.Elapsed = time.Since(r.Began).Seconds()
	whole := &r
	if o.Add {
		var err error
		if whole, err = r.addedTo(o.Out); err != nil {
			return err
		}
	}
	if err := whole.publish(o, &r); err != nil {
		return err
	}
	return failure
}

// addedTo returns the report in a directory with the sections of r, instead of its own of these names.
func (r *report) addedTo(dir string) (*report, error) {
	kept, err := readReport(dir)
	if err != nil {
		return nil, err
	}
	if kept.Setting != r.Setting || kept.Rounds != r.Rounds {
		return nil, fmt.Errorf("the report in %s was measured with the setting %s in %d rounds", dir, kept.Setting, kept.Rounds)
	}
	for _, s := range r.Sections {
		s.Run = &runReport{r.Command, r.Began, r.Machine}
		if at := slices.IndexFunc(kept.Sections, func(k sectionReport) bool { return k.Name == s.Name }); at >= 0 {
			kept.Sections[at] = s
		} else {
			kept.Sections = append(kept.Sections, s)
		}
	}
	kept.Modules = r.Modules
	return &kept, nil
}

// readReport reads the report in a directory, with the targets of its time.
func readReport(dir string) (r report, err error) {
	data, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	for _, s := range r.Sections {
		for i := range s.Targets {
			t := &s.Targets[i]
			t.target = Target{What: t.What, Bound: t.Bound, Better: betterOf(t.Better), Unit: t.Unit, Floor: t.Floor}
		}
	}
	return r, nil
}

// usualRounds is the number of rounds that a section's Full is about.
const usualRounds = 3

// estimate returns the estimated time of a section. A part of it is not measurement, and does not
// shrink with the setting.
func estimate(o Options, s Section) time.Duration {
	full := s.Full * time.Duration(o.Rounds) / usualRounds
	switch o.Setting {
	case Quick:
		return full / 10
	case Tiny:
		return full / 20
	default:
		return full
	}
}

// Render writes the report of an earlier run anew, with the present targets of the sections, and
// measures nothing.
func Render(o Options, sections []Section) error {
	r, err := readReport(o.Out)
	if err != nil {
		return err
	}
	for i := range r.Sections {
		s := &r.Sections[i]
		at := slices.IndexFunc(sections, func(now Section) bool { return now.Name == s.Name })
		if at < 0 {
			return fmt.Errorf("there is no section %s any more", s.Name)
		}
		for j := range s.Targets {
			t := find(sections[at].Targets, s.Targets[j].What)
			if t == nil {
				return fmt.Errorf("section %s has no target %q any more", s.Name, s.Targets[j].What)
			}
			s.Targets[j].set(*t)
		}
	}
	return r.publish(o, &r)
}

// The files of a report.
const (
	resultsFile = "results.json"
	pageFile    = "RESULTS.md"
)

// publish writes the report, and makes a run that of a machine if the machine has a name.
func (r *report) publish(o Options, run *report) error {
	if err := os.MkdirAll(filepath.Join(o.Out, "charts"), 0o755); err != nil {
		return err
	}
	if o.Machine != "" {
		if err := record(o.Out, o.Machine, run, o.Add); err != nil {
			return err
		}
	}
	return r.write(o.Out)
}

// write writes the report into a directory.
func (r *report) write(dir string) error {
	for _, s := range r.Sections {
		for _, t := range s.Tables {
			if t.Chart == nil {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, "charts", t.ID+".svg"), t.svg(), 0o644); err != nil {
				return err
			}
		}
	}
	if all := peers(); r.measured(all) {
		if err := os.WriteFile(filepath.Join(dir, "charts", peersChart+".svg"), r.peersChart(all), 0o644); err != nil {
			return err
		}
	}
	data, err := r.json()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, resultsFile), data, 0o644); err != nil {
		return err
	}
	machines, err := readMachines(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", machinesFile, err)
	}
	return os.WriteFile(filepath.Join(dir, pageFile), r.markdown(machines), 0o644)
}
