package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/presence"
)

// Trouble is something that is wrong.
type Trouble struct {
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Remedy   string   `json:"remedy,omitempty"`
	// Kind and Name are the mechanism's, if it is about one.
	Kind string `json:"kind,omitempty"`
	Name string `json:"name,omitempty"`
}

// Severity orders troubles.
type Severity int

// The severities, the worst last.
const (
	Notice   Severity = iota // a state that may be meant
	Warning                  // a promise is weakened, or work is left for a person
	Critical                 // requests fail
)

// String returns "notice", "warning" or "critical".
func (s Severity) String() string { return [...]string{"notice", "warning", "critical"}[s] }

// MarshalText returns String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

const (
	// deniedPart and enough are the part of denials among calls of a minute, and the number of
	// calls, from which on a limiter's denials are trouble.
	deniedPart, enough = 0.1, 20
	// longWait is a long wait for a lock or for permits.
	longWait = time.Second
	// longLate is a long time for a task to be due.
	longLate = 30 * time.Second
)

// Troubles returns what is wrong by the descriptions of processes, and of their histories if they have
// them, the worst first.
func Troubles(fleet []presence.Process) []Trouble {
	var found []Trouble
	found = append(found, ofProcesses(fleet)...)
	for _, row := range Rows(fleet) {
		found = append(found, ofRow(row)...)
	}
	return Sort(found)
}

// Sort sorts troubles, the worst first, and removes duplicates.
func Sort(found []Trouble) []Trouble {
	slices.SortStableFunc(found, func(a, b Trouble) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.What, b.What))
	})
	return slices.Compact(found)
}

func ofProcesses(fleet []presence.Process) (found []Trouble) {
	down := make(map[string][]string) // the names of processes, by the kind of store
	versions := make(map[string]int)
	for i := range fleet {
		p := &fleet[i]
		if p.Unreadable != "" {
			found = append(found, Trouble{Severity: Notice, What: fmt.Sprintf("the description of process %s is unreadable: %s", p.ID, p.Unreadable)})
			continue
		}
		versions[p.Version]++
		for _, s := range p.Stores {
			if s.Down {
				down[s.Kind] = append(down[s.Kind], fmt.Sprintf("%s on %s", p.Service, p.Host))
			}
			for _, f := range s.Findings {
				severity := Warning
				if f.Refused != "" {
					severity = Critical
				}
				found = append(found, Trouble{Severity: severity, What: f.Found + ": " + f.Weakens, Remedy: f.Remedy})
			}
		}
	}
	found = append(found, ofRules(fleet)...)
	for kind, processes := range down {
		slices.Sort(processes)
		found = append(found, Trouble{
			Severity: Critical,
			What:     fmt.Sprintf("the %s store is down for %s", kind, some(slices.Compact(processes))),
			Remedy:   "repair the server, or the way to it; processes notice by themselves",
		})
	}
	if len(versions) > 1 {
		found = append(found, Trouble{Severity: Notice, What: fmt.Sprintf("processes have %d versions of Lockkeeper", len(versions)), Remedy: "finish the deployment"})
	}
	return found
}

// ofRules returns what is wrong with the rules that processes follow.
func ofRules(fleet []presence.Process) (found []Trouble) {
	type document struct{ source, name, state string }
	behind := make(map[document][]string) // the names of processes
	for i := range fleet {
		p := &fleet[i]
		for _, r := range p.Rules {
			if r.State != RulesCurrent {
				of := document{r.Source, r.Name, r.State}
				behind[of] = append(behind[of], fmt.Sprintf("%s on %s", p.Service, p.Host))
			}
		}
	}
	for of, processes := range behind {
		found = append(found, Trouble{
			Severity: Warning,
			What: fmt.Sprintf("rules %s (%s) are %s in %s: %s", of.name, of.source, of.state,
				manyProcesses(len(processes)), some(slices.Compact(slices.Sorted(slices.Values(processes))))),
			Remedy: "mend the document, or the way to it: lockkeeper rules check, the log and the page Rules of these " +
				"processes have the errors",
		})
	}
	return found
}

// RulesCurrent is the state of rules that are those of their source.
const RulesCurrent = "current"

func manyProcesses(n int) string {
	if n == 1 {
		return "1 process"
	}
	return fmt.Sprintf("%d processes", n)
}

// some lists the first of many.
func some(texts []string) string {
	const most = 3
	if len(texts) <= most {
		return strings.Join(texts, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
}

func ofRow(r *Row) (found []Trouble) {
	add := func(s Severity, remedy, format string, args ...any) {
		found = append(found, Trouble{Severity: s, What: fmt.Sprintf(format, args...), Remedy: remedy, Kind: r.Kind, Name: r.Name})
	}
	if n := len(r.Settings()); n > 1 {
		add(Notice, "finish the deployment", "%s %s has %d different settings in its processes", Noun(r.Kind), r.Name, n)
	}
	minute := r.Minute()
	if minute.Failed > 0 && r.Kind != "idempotency" && r.Kind != "delay" { // whose failures leave work: see Left
		add(Warning, "look at its log lines", "%s %s has %s in the last minute", Noun(r.Kind), r.Name, many(int(minute.Failed), "failed call")) //nolint:gosec // of a minute
	}
	if minute.Lost > 0 {
		add(Warning, "see its log lines: the store was not reached in time, or the process was paused",
			"%s %s has lost %s in the last minute", Noun(r.Kind), r.Name, many(int(minute.Lost), "lease")) //nolint:gosec // of a minute
	}
	if minute.Unrenewed > 0 {
		add(Warning, "see whether the store is slow or down: leases end unless a renewal succeeds",
			"%s %s has %s in the last minute", Noun(r.Kind), r.Name, many(int(minute.Unrenewed), "failed renewal")) //nolint:gosec // of a minute
	}
	switch r.Kind {
	case "rate_limit":
		if calls := minute.Calls(); calls >= enough && float64(minute.Denied) > deniedPart*float64(calls) {
			add(Notice, "see which keys it denies", "limiter %s denied %.0f %% of %d calls in the last minute", r.Name, 100*float64(minute.Denied)/float64(calls), calls)
		}
	case "lock", "semaphore":
		if minute.Measured && minute.P99 > longWait {
			add(Warning, "see who holds it", "one call in a hundred of %s %s waited for up to %v in the last minute", Noun(r.Kind), r.Name, minute.P99)
		}
	}
	return found
}

// many returns a number with its noun.
func many(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// Noun returns the name of a kind of mechanism for people.
func Noun(kind string) string {
	switch kind {
	case "rate_limit":
		return "limiter"
	case "idempotency":
		return "guard"
	case "delay":
		return "queue"
	}
	return kind
}

// Left returns the work that waits for a person: operations of unknown outcome, and buried and late
// tasks. It lists the records of guards, which takes Redis seconds for a million of them. An error
// ends it, and earlier findings are returned all the same.
func Left(ctx context.Context, st any, fleet []presence.Process) (found []Trouble, err error) {
	for _, r := range Rows(fleet) {
		if !r.Reachable() {
			continue
		}
		var more []Trouble
		switch r.Kind {
		case "idempotency":
			more, err = unresolved(ctx, st, r)
		case "delay":
			more, err = leftTasks(ctx, st, r)
		}
		if err != nil {
			return found, err
		}
		found = append(found, more...)
	}
	return found, nil
}

func unresolved(ctx context.Context, st any, r *Row) ([]Trouble, error) {
	list, err := inspect.Unresolved(ctx, st, r.Name)
	n := len(list.Items)
	if err != nil || n == 0 {
		return nil, err
	}
	atLeast := ""
	if list.More {
		atLeast = "at least "
	}
	return []Trouble{{
		Severity: Warning, Kind: r.Kind, Name: r.Name, Remedy: "find out what happened, and resolve them",
		What: fmt.Sprintf("the outcome of %s%s of guard %s is unknown", atLeast, many(n, "operation"), r.Name),
	}}, nil
}

func leftTasks(ctx context.Context, st any, r *Row) (found []Trouble, err error) {
	counts, err := inspect.Queue(ctx, st, r.Name)
	if err != nil {
		return nil, err
	}
	if counts.Buried > 0 {
		found = append(found, Trouble{
			Severity: Warning, Kind: r.Kind, Name: r.Name, Remedy: "mend the cause, then revive or cancel them",
			What: fmt.Sprintf("queue %s has %s", r.Name, many(counts.Buried, "buried task")),
		})
	}
	if counts.Oldest > longLate {
		found = append(found, Trouble{
			Severity: Warning, Kind: r.Kind, Name: r.Name, Remedy: "run more at a time, or see why they take long",
			What: fmt.Sprintf("a task of queue %s has been due for %v", r.Name, counts.Oldest.Round(time.Second)),
		})
	}
	return found, nil
}
