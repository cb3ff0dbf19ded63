package console

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// rulesData is the content of the page Rules.
type rulesData struct {
	Rules     []oneRules     `json:"rules"` // of this process
	Processes []ruledProcess `json:"processes"`
	ShowKeys  bool           `json:"-"`
	Error     string         `json:"error,omitempty"`
}

// oneRules is a document that this process follows. Texts of it, and of its errors, may have keys.
type oneRules struct {
	Source       string        `json:"source"`
	Name         string        `json:"name"`
	State        string        `json:"state"`
	Since        time.Duration `json:"since_ns"`
	Version      string        `json:"version,omitempty"`
	Revision     int64         `json:"revision,string,omitempty"`
	Hash         string        `json:"hash"`
	InForce      time.Duration `json:"in_force_ns"`
	Bytes        int           `json:"bytes"`
	Errors       []ruleError   `json:"errors,omitempty"`
	More         int           `json:"more_errors,omitempty"`
	Document     string        `json:"document,omitempty"` // with ShowKeys, up to a bound
	Refused      string        `json:"refused,omitempty"`  // likewise: that of the source, if it has errors
	History      []ruleVersion `json:"history,omitempty"`
	HistoryError string        `json:"history_error,omitempty"`
}

// ruleError is an error. One with a place has a path and a text with ShowKeys only.
type ruleError struct {
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
	Path   string `json:"path,omitempty"`
	Text   string `json:"text,omitempty"`
}

// ruleVersion is a version of a document in the store.
type ruleVersion struct {
	Number int64  `json:"version,string"`
	Hash   string `json:"hash"`
	Bytes  int    `json:"bytes"`
	By     string `json:"by,omitempty"`
	Why    string `json:"why,omitempty"`
	Age    string `json:"age,omitempty"` // by the clocks of its process and of this one
	Here   bool   `json:"in_force_here"`
}

// ruledProcess is a process that follows a document.
type ruledProcess struct {
	Service string `json:"service"`
	Host    string `json:"host"`
	PID     int    `json:"pid"`
	Own     bool   `json:"this_process"`
	ruled
}

// ruled is a document that a process follows, as it says itself.
type ruled struct {
	Name     string `json:"name"`
	Source   string `json:"source"`
	State    string `json:"state"`
	Since    string `json:"since"`
	Version  string `json:"version,omitempty"`
	Revision int64  `json:"revision,string,omitempty"`
	Hash     string `json:"hash"`
	Errors   int    `json:"errors,omitempty"`
}

// Current reports whether the document is that of its source.
func (r ruled) Current() bool { return r.State == operate.RulesCurrent }

// Current reports whether the document is that of its source.
func (r *oneRules) Current() bool { return r.State == operate.RulesCurrent }

func ruledOf(r presence.Rules) ruled {
	return ruled{
		Name: operate.OneLine(r.Name), Source: operate.OneLine(r.Source), State: operate.OneLine(r.State), Since: short(r.Since),
		Version: operate.OneLine(r.Version), Revision: r.Revision, Hash: operate.OneLine(r.Hash), Errors: r.Errors,
	}
}

// The bounds of what the page shows of a document.
const (
	maxShownErrors = 100
	maxShownText   = 64 << 10
)

// rules answers which rules are in force, and why others are not.
func (q *request) rules() (view, error) {
	if len(q.console.rules) == 0 {
		return view{}, errNotFound
	}
	return view{title: "Rules", template: "rules", streamed: true, load: func(ctx context.Context) (any, error) {
		d := &rulesData{ShowKeys: q.console.showKeys}
		for _, r := range q.console.rules {
			one := q.rulesOf(r.Inspect())
			history, err := r.InspectHistory(ctx)
			if err != nil {
				one.HistoryError = storeText(err)
			}
			for _, v := range history {
				one.History = append(one.History, versionOf(v, one.Revision))
			}
			d.Rules = append(d.Rules, one)
		}
		s, err := q.console.fleet.get(ctx, false)
		if err != nil {
			return nil, err
		}
		if s.err != nil {
			d.Error = storeText(s.err) + " Only this process is shown."
		}
		for i := range s.processes {
			p := &s.processes[i]
			for _, r := range p.Rules {
				d.Processes = append(d.Processes, ruledProcess{
					operate.OneLine(p.Service), operate.OneLine(p.Host), p.PID, p.ID == q.console.presence.ID(), ruledOf(r),
				})
			}
		}
		return d, nil
	}}, nil
}

func (q *request) rulesOf(r inspect.Rules) oneRules {
	one := oneRules{
		Source: r.Source, Name: operate.OneLine(r.Name), State: r.State, Since: since(r.Since), Version: operate.OneLine(r.Version),
		Revision: r.Revision, Hash: r.Hash, InForce: since(r.At), Bytes: len(r.Document),
		More: max(len(r.Errors)-maxShownErrors, 0),
	}
	for _, e := range r.Errors[:len(r.Errors)-one.More] {
		shown := ruleError{Line: e.Line, Column: e.Column}
		if q.console.showKeys || e.Line == 0 { // else it may quote the document
			shown.Path, shown.Text = operate.OneLine(e.Path), operate.OneLine(e.Text)
		}
		one.Errors = append(one.Errors, shown)
	}
	if q.console.showKeys {
		one.Document, one.Refused = numbered(r.Document), numbered(r.Refused)
	}
	return one
}

func versionOf(v inspect.RulesVersion, inForce int64) ruleVersion {
	shown := ruleVersion{
		Number: v.Number, Hash: v.Hash, Bytes: v.Bytes, By: operate.OneLine(v.By), Why: operate.OneLine(v.Why), Here: v.Number == inForce,
	}
	if !v.At.IsZero() {
		shown.Age = short(since(v.At))
	}
	return shown
}

// since returns how long ago something was, by clocks that may differ.
func since(at time.Time) time.Duration { return max(time.Since(at), 0) }

// numbered returns the lines of a document, with their numbers and without what controls the direction
// of writing.
func numbered(document []byte) string {
	text := strings.TrimSuffix(string(document[:min(len(document), maxShownText)]), "\n")
	if text == "" {
		return ""
	}
	var b strings.Builder
	for i, line := range strings.Split(text, "\n") {
		body := strings.TrimLeft(line, " ")
		fmt.Fprintf(&b, "%4d  %s%s\n", i+1, line[:len(line)-len(body)], operate.OneLine(body))
	}
	if len(document) > maxShownText {
		fmt.Fprintf(&b, "      and more: the document has %d bytes\n", len(document))
	}
	return b.String()
}
