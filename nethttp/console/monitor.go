package console

import (
	"cmp"
	"context"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// perPage is the number of mechanisms on a page of the monitor.
const perPage = 12

// monitorData is the content of the page Monitor.
type monitorData struct {
	Rows      []monitorRow  `json:"mechanisms"`
	Found     int           `json:"found"` // on all pages
	Page      int           `json:"page"`
	Pages     int           `json:"pages"`
	Search    string        `json:"search,omitempty"`
	Process   string        `json:"process,omitempty"` // its ID; "" for all
	Processes []processName `json:"processes"`
	Age       string        `json:"age"`
	Error     string        `json:"error,omitempty"`

	Every string `json:"-"`
}

// Query returns the query of another page.
func (d *monitorData) Query(page int) string {
	v := url.Values{}
	for field, text := range map[string]string{"q": d.Search, "process": d.Process, "every": d.Every} {
		if text != "" && text != "2" {
			v.Set(field, text)
		}
	}
	if page > 1 {
		v.Set("page", strconv.Itoa(page))
	}
	return "?" + v.Encode()
}

type processName struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

func nameOf(p *presence.Process) string {
	if p.Unreadable != "" {
		return p.ID
	}
	return operate.OneLine(p.Service) + " " + strconv.Itoa(p.PID) + " on " + operate.OneLine(p.Host)
}

// monitorRow is a mechanism, in the fleet or in a process.
type monitorRow struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Processes int    `json:"processes"`
	// In the last 5 s that have ended.
	Allowed uint64 `json:"allowed"`
	Denied  uint64 `json:"denied"`
	Failed  uint64 `json:"failed"`
	Other   uint64 `json:"other"`
	P50     string `json:"p50,omitempty"`
	P99     string `json:"p99,omitempty"`
	// Now.
	Waiting int64 `json:"waiting"`
	Held    int64 `json:"held"`
	// Since the processes started.
	Total uint64 `json:"total"`

	Minutes operate.Point `json:"last_ten_minutes"` // their sums
	Chart   chart         `json:"-"`
	History bool          `json:"history"` // the slots of all processes are known

	Of *presence.Process `json:"-"` // of a row of one process
}

func rowOf(r *operate.Row) monitorRow {
	latest, points := r.Latest(), r.Chart()
	m := monitorRow{
		Kind: r.Kind, Name: r.Name, Processes: len(r.Parts),
		Allowed: latest.Passed, Denied: latest.Denied, Failed: latest.Failed, Other: latest.Other,
		Waiting: r.Waiting, Held: r.Held, Total: r.Calls(), Chart: draw(points),
		History: !slices.ContainsFunc(r.Parts, func(p operate.Part) bool { return p.Mechanism.Slots == nil }),
	}
	if latest.Measured {
		m.P50, m.P99 = short(latest.P50), short(latest.P99)
	}
	for i := range points {
		p := &points[i]
		m.Minutes.Passed += p.Passed
		m.Minutes.Denied += p.Denied
		m.Minutes.Failed += p.Failed
		m.Minutes.Other += p.Other
		m.Minutes.Lost += p.Lost
		m.Minutes.Unrenewed += p.Unrenewed
		m.Minutes.Candidate += p.Candidate
		m.Minutes.Waiting = max(m.Minutes.Waiting, p.Waiting)
		m.Minutes.Held = max(m.Minutes.Held, p.Held)
	}
	return m
}

// monitor answers what passes and what is denied.
func (q *request) monitor() (view, error) {
	query := q.URL.Query()
	page := 1
	if text := query.Get("page"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return view{}, problem{400, "The page is a number from 1."}
		}
		page = n
	}
	search, process := strings.ToLower(query.Get("q")), query.Get("process")
	return view{title: "Monitor", template: "monitor", live: true, load: func(ctx context.Context) (any, error) {
		s, err := q.console.fleet.get(ctx, true)
		if err != nil {
			return nil, err
		}
		d := &monitorData{
			Search: query.Get("q"), Process: process, Every: q.every(),
			Age: short(oldest(s.processes) + time.Since(s.at)),
		}
		if s.err != nil {
			d.Error = storeText(s.err) + " Only this process is shown."
		}
		shown := s.processes
		for i := range s.processes {
			p := &s.processes[i]
			d.Processes = append(d.Processes, processName{p.ID, nameOf(p)})
			if p.ID == process {
				shown = s.processes[i : i+1]
			}
		}
		rows := operate.Rows(shown)
		rows = slices.DeleteFunc(rows, func(r *operate.Row) bool {
			return !strings.Contains(strings.ToLower(r.Name), search) && !strings.Contains(operate.Noun(r.Kind), search)
		})
		minutes := make(map[*operate.Row]operate.Point, len(rows))
		for _, r := range rows {
			minutes[r] = r.Minute()
		}
		slices.SortStableFunc(rows, func(a, b *operate.Row) int {
			x, y := minutes[a], minutes[b]
			return cmp.Or(cmp.Compare(y.Denied, x.Denied), cmp.Compare(y.Calls(), x.Calls()))
		})
		d.Found, d.Pages = len(rows), max((len(rows)+perPage-1)/perPage, 1)
		d.Page = min(page, d.Pages)
		rows = rows[(d.Page-1)*perPage : min(d.Page*perPage, len(rows))]
		for _, r := range rows {
			d.Rows = append(d.Rows, rowOf(r))
		}
		return d, nil
	}}, nil
}

// mechanismData is the content of the page of one mechanism.
type mechanismData struct {
	Row      monitorRow   `json:"all"`
	Parts    []monitorRow `json:"processes"`
	Names    []string     `json:"process_names"`
	Settings []string     `json:"settings"`
	Denied   []deniedKey  `json:"denied_keys,omitempty"`
	Store    string       `json:"store"`
	Age      string       `json:"age"`
	Error    string       `json:"error,omitempty"`

	Points []operate.Point `json:"points"` // 5 s each, the oldest first; the last one has not ended
}

type deniedKey struct {
	Key     string `json:"key"`
	Denials uint64 `json:"denials"`
}

// mechanism answers what one mechanism does.
func (q *request) mechanism() (view, error) {
	kind := q.path.at(1)
	name, err := q.name(2)
	if err != nil {
		return view{}, err
	}
	return view{title: name, template: "mechanism", live: true, load: func(ctx context.Context) (any, error) {
		s, err := q.console.fleet.get(ctx, true)
		if err != nil {
			return nil, err
		}
		rows := operate.Rows(s.processes)
		i := slices.IndexFunc(rows, func(r *operate.Row) bool { return r.Kind == kind && r.Name == name })
		if i < 0 {
			return nil, problem{404, "No process that is alive has such a mechanism."}
		}
		r := rows[i]
		d := &mechanismData{
			Row: rowOf(r), Settings: r.Settings(), Store: r.Store, Points: r.Chart(),
			Age: short(oldest(s.processes) + time.Since(s.at)),
		}
		if s.err != nil {
			d.Error = storeText(s.err) + " Only this process is shown."
		}
		for _, part := range r.Parts {
			one := &operate.Row{Kind: r.Kind, Name: r.Name, Store: r.Store, Parts: []operate.Part{part}, Activity: part.Mechanism.Activity}
			d.Parts = append(d.Parts, rowOf(one))
			d.Names = append(d.Names, nameOf(part.Process))
		}
		for _, k := range r.DeniedKeys() {
			d.Denied = append(d.Denied, deniedKey{operate.OneLine(k.Key), k.Denials})
		}
		return d, nil
	}}, nil
}
