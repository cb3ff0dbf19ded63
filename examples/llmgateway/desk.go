package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"slices"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

//go:embed page
var page embed.FS

// desk shows the budgets of the teams, and what became of answers. A real gateway has metrics for
// this.
type desk struct {
	limiter *tokenbucket.Limiter

	mu      sync.Mutex
	entries []*entry // the oldest first
}

// remembered is how many answers the desk remembers that have ended.
const remembered = 200

// entry is an answer.
type entry struct {
	desk *desk
	team string

	ID       string  `json:"id"` // as the client calls it, to find it again
	Estimate int64   `json:"estimate"`
	Used     int64   `json:"used"`    // so far, and 0 if it is not known
	How      outcome `json:"outcome"` // empty until it has ended
}

func newDesk(limiter *tokenbucket.Limiter) *desk { return &desk{limiter: limiter} }

func (d *desk) begin(ctx context.Context, id string, estimate int64) *entry {
	team, _ := ctx.Value(teamKey{}).(string)
	if len(id) > 64 {
		id = ""
	}
	e := &entry{desk: d, team: team, ID: id, Estimate: estimate}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.entries) >= remembered {
		if i := slices.IndexFunc(d.entries, func(e *entry) bool { return e.How != "" }); i >= 0 {
			d.entries = slices.Delete(d.entries, i, i+1)
		}
	}
	d.entries = append(d.entries, e)
	return e
}

func (e *entry) use(n int64) {
	e.desk.mu.Lock()
	defer e.desk.mu.Unlock()
	e.Used = n
}

func (e *entry) end(how outcome) {
	e.desk.mu.Lock()
	defer e.desk.mu.Unlock()
	e.How = how
}

// budget is a bucket as the page shows it.
type budget struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	Used     int64  `json:"used"`     // with what other gateways have reserved
	Reserved int64  `json:"reserved"` // for answers that stream through this gateway, and have not used it yet
	Reset    int64  `json:"reset"`    // seconds until it is full
}

// budgets returns how the buckets of a team stand.
func (d *desk) budgets(ctx context.Context, team string) ([]budget, error) {
	decision, err := d.limiter.Peek(ctx, team)
	if err != nil {
		return nil, err
	}
	reserved := d.reserved(team)
	budgets := []budget{}
	for _, l := range decision.Limits() {
		taken := int64(math.Round(float64(l.Capacity) * float64(l.Reset) / float64(l.Window))) // more than Capacity if overdrawn
		held := min(reserved[l.Name], taken)
		budgets = append(budgets, budget{l.Name, l.Capacity, taken - held, held, int64(math.Ceil(l.Reset.Seconds()))})
	}
	return budgets, nil
}

// reserved returns what the answers that stream have not used yet.
func (d *desk) reserved(team string) tokenbucket.Cost {
	d.mu.Lock()
	defer d.mu.Unlock()
	reserved := tokenbucket.Cost{}
	for _, e := range d.entries {
		if e.team == team && e.How == "" {
			reserved["requests"]++
			reserved["tokens"] += max(e.Estimate-e.Used, 0)
		}
	}
	return reserved
}

// show registers what the page needs.
func (d *desk) show(mux *http.ServeMux) error {
	mux.Handle("GET /demo/budgets", authenticate(http.HandlerFunc(d.showBudgets)))
	mux.HandleFunc("GET /demo/answers/{id}", d.showAnswer)
	mux.Handle("POST /demo/reset", authenticate(http.HandlerFunc(d.reset)))
	mux.Handle("POST /demo/rush", authenticate(http.HandlerFunc(rush)))
	return demo.Page(mux, page)
}

func (d *desk) showBudgets(w http.ResponseWriter, r *http.Request) {
	team := r.Context().Value(teamKey{}).(string)
	budgets, err := d.budgets(r.Context(), team)
	if err != nil {
		http.Error(w, "the budgets are not known", http.StatusServiceUnavailable)
		return
	}
	reply(w, budgets)
}

func (d *desk) showAnswer(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := slices.IndexFunc(d.entries, func(e *entry) bool { return e.ID == r.PathValue("id") })
	if i < 0 {
		http.Error(w, "there is no such answer", http.StatusNotFound)
		return
	}
	reply(w, d.entries[i])
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(v) // fails only if the client has left
}

// reset fills the team's buckets, as support may do for a customer.
func (d *desk) reset(w http.ResponseWriter, r *http.Request) {
	if err := d.limiter.Reset(r.Context(), r.Context().Value(teamKey{}).(string)); err != nil {
		http.Error(w, "the buckets are as they were", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// crowd is how many requests rush sends.
const crowd = 100

// rush sends requests to the gateway, all at once, with the body and the key of its own. It answers
// with a line of JSON for each status as it comes in, and ends with the last answer. The page could
// not do that: a browser opens at most six connections to a server.
func rush(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, "the request cannot be read", http.StatusBadRequest)
		return
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	statuses := make(chan int)
	var sending sync.WaitGroup
	for range crowd {
		sending.Go(func() { sendOne(client, r, body, statuses) })
	}
	go func() {
		sending.Wait()
		close(statuses)
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	for status := range statuses {
		_ = json.NewEncoder(w).Encode(status) // fails only if the client has left
		_ = http.NewResponseController(w).Flush()
	}
}

// sendOne sends a request of a rush. It says the status as soon as it is known, 0 for none, and
// reads the answer.
func sendOne(client *http.Client, r *http.Request, body []byte, statuses chan<- int) {
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, demo.Self(r)+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		statuses <- 0
		return
	}
	req.Header.Set("Authorization", r.Header.Get("Authorization"))
	resp, err := client.Do(req)
	if err != nil {
		statuses <- 0
		return
	}
	defer func() { _ = resp.Body.Close() }()
	statuses <- resp.StatusCode
	_, _ = io.Copy(io.Discard, resp.Body)
}
