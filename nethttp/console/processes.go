package console

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// processesData is the content of the page Processes.
type processesData struct {
	Processes []oneProcess `json:"processes"`
	Age       string       `json:"age"`
	Error     string       `json:"error,omitempty"`
}

type oneProcess struct {
	ID         string     `json:"id"`
	Service    string     `json:"service"`
	Host       string     `json:"host"`
	PID        int        `json:"pid"`
	Up         string     `json:"up"`
	Version    string     `json:"version"`
	Go         string     `json:"go"`
	Own        bool       `json:"this_process"`
	Stores     []oneStore `json:"stores"`
	Mechanisms int        `json:"mechanisms"`
	Rules      []ruled    `json:"rules,omitempty"`
	Age        string     `json:"age"`
	Unreadable string     `json:"unreadable,omitempty"`
}

type oneStore struct {
	Kind     string   `json:"kind"`
	Down     bool     `json:"down"`
	Calls    uint64   `json:"calls"`
	Failed   uint64   `json:"failed"`
	Findings []string `json:"findings,omitempty"`
}

// processes answers which processes there are.
func (q *request) processes() view {
	return view{title: "Processes", template: "processes", load: func(ctx context.Context) (any, error) {
		s, err := q.console.fleet.get(ctx, false)
		if err != nil {
			return nil, err
		}
		d := &processesData{Age: short(time.Since(s.at))}
		if s.err != nil {
			d.Error = storeText(s.err) + " Only this process is shown."
		}
		for i := range s.processes {
			p := &s.processes[i]
			one := oneProcess{
				ID: p.ID, Service: operate.OneLine(p.Service), Host: operate.OneLine(p.Host), PID: p.PID, Up: short(p.Up),
				Version: p.Version, Go: p.Go, Own: p.ID == q.console.presence.ID(), Mechanisms: len(p.Mechanisms) + p.More,
				Age: short(p.Age), Unreadable: p.Unreadable,
			}
			for _, r := range p.Rules {
				one.Rules = append(one.Rules, ruledOf(r))
			}
			for _, st := range p.Stores {
				os := oneStore{Kind: st.Kind, Down: st.Down, Calls: st.Calls.Calls(), Failed: st.Calls.Failed}
				for _, f := range st.Findings {
					os.Findings = append(os.Findings, f.Found)
				}
				one.Stores = append(one.Stores, os)
			}
			d.Processes = append(d.Processes, one)
		}
		return d, nil
	}}
}

// logData is the content of the page Log.
type logData struct {
	Entries []operate.Entry `json:"entries"`
}

// log answers who did what.
func (q *request) log() view {
	return view{title: "Log", template: "log", streamed: true, load: func(ctx context.Context) (any, error) {
		entries, err := operate.Log(ctx, q.console.stores[0])
		return &logData{entries}, err
	}}
}
