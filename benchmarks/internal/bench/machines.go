package bench

import (
	"encoding/json"
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// machinesFile has what published runs on several machines have measured of the targets. One machine
// reaches a ratio that another one does not, so their median is judged.
const machinesFile = "machines.json"

// published is the last published run on a machine.
type published struct {
	Name       string             `json:"name"`
	Processor  string             `json:"processor"`
	SystemCall string             `json:"system_call,omitempty"`
	Began      time.Time          `json:"began"`
	Values     map[string]float64 `json:"values"` // of targets, by their names
	// Older names targets that the run measured before a change of the library moved them by more
	// than a tenth, and says which change. They are shown, and not judged.
	Older map[string]string `json:"older,omitempty"`
}

// judged reports the value of a target, if it is to be judged.
func (p *published) judged(what string) (float64, bool) {
	if _, older := p.Older[what]; older {
		return 0, false
	}
	v, ok := p.Values[what]
	return v, ok
}

// medianOf returns the median of what the machines have measured of a target; NaN if none has.
func medianOf(all []published, what string) float64 {
	var values []float64
	for _, p := range all {
		if v, ok := p.judged(what); ok {
			values = append(values, v)
		}
	}
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return median(values)
}

// readMachines returns those of a directory: none if it has no such file.
func readMachines(dir string) (all []published, err error) {
	data, err := os.ReadFile(filepath.Join(dir, machinesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(data, &all)
}

// record makes a run that of a machine, instead of an earlier one on it, or adds its targets to that.
func record(dir, name string, r *report, add bool) error {
	all, err := readMachines(dir)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(all, func(p published) bool { return p.Name == name })
	if at < 0 {
		at, all = len(all), append(all, published{})
	}
	p := &all[at]
	if !add || p.Values == nil {
		*p = published{
			Name: name, Processor: named(r.Machine, "processor"), SystemCall: named(r.Machine, "system call"), Began: r.Began,
			Values: make(map[string]float64),
		}
	}
	for _, s := range r.Sections {
		for _, t := range s.Targets {
			if t.Value != nil {
				p.Values[t.What] = *t.Value
				delete(p.Older, t.What)
			}
		}
	}
	data, err := json.MarshalIndent(all, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, machinesFile), append(data, '\n'), 0o644)
}

// named returns the value of a fact, or "" if there is none of this name.
func named(facts []fact, name string) string {
	for _, f := range facts {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}
