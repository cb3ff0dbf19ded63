package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// fleetReader reads the descriptions of processes.
type fleetReader = func(context.Context, store.Documents) ([]presence.Process, error)

const (
	// historyPatience is how long processes may take to write their histories, after the first call
	// of presence.Watch: they look every 5 s.
	historyPatience = 6 * time.Second
	historyPause    = 250 * time.Millisecond
)

// watchFleet reads the descriptions of processes with their histories.
func watchFleet(ctx context.Context, st store.Documents) ([]presence.Process, error) {
	ending := time.Now().Add(historyPatience)
	for {
		fleet, err := presence.Watch(ctx, st)
		if err != nil || complete(fleet) || time.Now().After(ending) {
			return fleet, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(historyPause):
		}
	}
}

// complete reports whether every process has written its history, of some of its mechanisms at least.
func complete(fleet []presence.Process) bool {
	for i := range fleet {
		if len(fleet[i].Mechanisms) > 0 && !hasHistory(&fleet[i]) {
			return false
		}
	}
	return true
}

func hasHistory(p *presence.Process) bool {
	for i := range p.Mechanisms {
		if p.Mechanisms[i].Slots != nil {
			return true
		}
	}
	return false
}

// namesView is the mechanisms of a kind.
type namesView struct {
	Names []nameView `json:"names"`
	kind  string
}

type nameView struct {
	Name      string `json:"name"`
	Processes int    `json:"processes"`
	Held      int64  `json:"held"`
	Waiting   int64  `json:"waiting"`
	Settings  string `json:"settings"`  // of most processes
	Reachable bool   `json:"reachable"` // it has its state in this store
}

func (v *namesView) text(p printer) {
	if len(v.Names) == 0 {
		p.line("No living process has a %s.", operate.Noun(v.kind))
		return
	}
	var t table
	t.add("NAME", "PROCESSES", "HELD", "WAITING", "SETTINGS")
	for _, n := range v.Names {
		name := quoted(n.Name)
		if !n.Reachable {
			name += " (on another store)"
		}
		t.add(name, strconv.Itoa(n.Processes), strconv.FormatInt(n.Held, 10), strconv.FormatInt(n.Waiting, 10),
			quoted(n.Settings))
	}
	t.print(p)
}

// names lists the mechanisms of a kind that living processes have.
func (c *call) names(ctx context.Context, kind string) error {
	fleet, err := presence.Fleet(ctx, c.store)
	if err != nil {
		return err
	}
	v := &namesView{Names: []nameView{}, kind: kind}
	for _, r := range operate.Rows(fleet) {
		if r.Kind == kind {
			v.Names = append(v.Names, nameView{r.Name, len(r.Parts), r.Held, r.Waiting, r.Settings()[0], r.Reachable()})
		}
	}
	return c.print(v)
}

// nowView has the troubles of a fleet.
type nowView struct {
	Sentence  string            `json:"sentence"`
	Troubles  []operate.Trouble `json:"troubles"`
	Processes int               `json:"processes"`
}

func (v *nowView) text(p printer) {
	p.line("%s", v.Sentence)
	for _, t := range v.Troubles {
		p.line("%-8s  %s", t.Severity, t.What)
		if t.Remedy != "" {
			p.line("%8s  to do: %s", "", t.Remedy)
		}
	}
	p.line("%s", counted(v.Processes, "process", "processes"))
}

func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// now prints the troubles of the fleet.
func now(ctx context.Context, c *call) error {
	fleet, err := watchFleet(ctx, c.store)
	if err != nil {
		return err
	}
	left, err := operate.Left(ctx, c.store, fleet)
	if err != nil {
		return err
	}
	found := operate.Sort(append(troubles(fleet), left...))
	v := &nowView{operate.Sentence(found), found, len(fleet)}
	if v.Troubles == nil {
		v.Troubles = []operate.Trouble{}
	}
	if err := c.print(v); err != nil {
		return err
	}
	if operate.Wrong(found) > 0 {
		return errFound
	}
	return nil
}

// troubles are those of a fleet. One without processes is one.
func troubles(fleet []presence.Process) []operate.Trouble {
	if len(fleet) == 0 {
		return []operate.Trouble{{
			Severity: operate.Warning, What: "no process shows itself",
			Remedy: "call presence.Start, or console.New, in each of them",
		}}
	}
	return operate.Troubles(fleet)
}

// processesView is the processes that show themselves.
type processesView struct {
	Processes []processView `json:"processes"`
}

type processView struct {
	ID         string        `json:"id"`
	Service    string        `json:"service"`
	Host       string        `json:"host"`
	PID        int           `json:"pid"`
	Up         time.Duration `json:"up_ns"`
	Version    string        `json:"version"`
	Go         string        `json:"go"`
	Stores     []storeView   `json:"stores"`
	Mechanisms int           `json:"mechanisms"`
	Rules      []rulesView   `json:"rules,omitempty"`
	Age        time.Duration `json:"age_ns"` // of this description
	Unreadable string        `json:"unreadable,omitempty"`
}

// rulesView is a document with rules that a process follows.
type rulesView struct {
	Source   string        `json:"source"`
	Name     string        `json:"name"`
	State    string        `json:"state"`
	Since    time.Duration `json:"since_ns"`
	Version  string        `json:"version,omitempty"`
	Revision int64         `json:"revision,omitempty,string"`
	Hash     string        `json:"hash"`
	Errors   int           `json:"errors,omitempty"`
}

func (v *rulesView) describe() string {
	text := quoted(v.Name) + " " + quoted(v.State)
	if v.Hash != "" {
		text += " " + quoted(v.Hash)
	}
	if v.Errors > 0 {
		text += ", " + counted(v.Errors, "error", "errors")
	}
	return text
}

type storeView struct {
	Kind     string        `json:"kind"`
	Down     bool          `json:"down"`
	Calls    uint64        `json:"calls"`
	Failed   uint64        `json:"failed"`
	Findings []findingView `json:"findings,omitempty"`
}

func processOf(p *presence.Process) processView {
	v := processView{
		ID: p.ID, Service: p.Service, Host: p.Host, PID: p.PID, Up: p.Up, Version: p.Version, Go: p.Go,
		Mechanisms: len(p.Mechanisms) + p.More, Age: p.Age, Unreadable: p.Unreadable,
	}
	for i := range p.Stores {
		s := &p.Stores[i]
		v.Stores = append(v.Stores, storeView{s.Kind, s.Down, s.Calls.Calls(), s.Calls.Failed, findingsOf(s.Findings)})
	}
	for _, r := range p.Rules {
		v.Rules = append(v.Rules, rulesView(r))
	}
	return v
}

func (v *processesView) text(p printer) {
	var t table
	t.add("SERVICE", "HOST", "PID", "UP", "VERSION", "GO", "MECHANISMS", "STORES", "DESCRIBED", v.rulesHeading())
	for _, one := range v.Processes {
		if one.Unreadable != "" {
			t.add("unreadable: " + quoted(one.ID) + ": " + quoted(one.Unreadable))
			continue
		}
		t.add(quoted(one.Service), quoted(one.Host), strconv.Itoa(one.PID), operate.Short(one.Up),
			quoted(one.Version), quoted(one.Go),
			strconv.Itoa(one.Mechanisms), one.describeStores(), operate.Short(one.Age)+" ago", one.describeRules())
	}
	t.print(p)
}

// rulesHeading returns the heading of the rules, if a process follows any.
func (v *processesView) rulesHeading() string {
	for i := range v.Processes {
		if len(v.Processes[i].Rules) > 0 {
			return "RULES"
		}
	}
	return ""
}

func (v *processView) describeRules() string {
	var all []string
	for i := range v.Rules {
		all = append(all, v.Rules[i].describe())
	}
	return strings.Join(all, "; ")
}

func (v *processView) describeStores() string {
	var all []string
	for _, s := range v.Stores {
		text := quoted(s.Kind)
		if s.Down {
			text += " is down"
		}
		if n := len(s.Findings); n > 0 {
			text += fmt.Sprintf(" (%d found)", n)
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func processes(ctx context.Context, c *call) error {
	fleet, err := presence.Fleet(ctx, c.store)
	if err != nil {
		return err
	}
	v := &processesView{Processes: []processView{}}
	for i := range fleet {
		v.Processes = append(v.Processes, processOf(&fleet[i]))
	}
	return c.print(v)
}

// logView is the log of actions.
type logView struct {
	Entries []operate.Entry `json:"entries"`
}

func (v *logView) text(p printer) {
	if len(v.Entries) == 0 {
		p.line("There were no actions.")
		return
	}
	var t table
	t.add("WHEN", "WHO", "WHAT", "OF", "KEY", "OUTCOME", "DETAIL", "WHY")
	for _, e := range v.Entries {
		when := operate.Short(e.Age) + " ago"
		if e.Unread != "" {
			t.add(when, "unreadable: "+e.Unread)
			continue
		}
		t.add(when, quoted(e.Operator), quoted(string(e.Kind)), quoted(e.Name), quoted(e.KeyID),
			quoted(string(e.Outcome)), quoted(e.Detail), quoted(e.Why))
	}
	t.print(p)
}

func showLog(ctx context.Context, c *call) error {
	entries, err := operate.Log(ctx, c.store)
	if err != nil {
		return err
	}
	if entries == nil {
		entries = []operate.Entry{}
	}
	return c.print(&logView{entries})
}
