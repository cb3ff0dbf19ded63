package main

import (
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
	"github.com/lockkeeper/lockkeeper/nethttp"
)

//go:embed page
var page embed.FS

// desk shows the budgets, which a real login does not tell anybody, and guesses passwords.
type desk struct {
	budgets []counted
	devices devices
}

// counted is what failures are counted by.
type counted struct {
	name    string
	limiter *tokenbucket.Limiter
	key     nethttp.KeyFunc
}

// budget is how many failures there may still be.
type budget struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	Left     int64  `json:"left"`
	Held     int64  `json:"held"` // seconds, 0 if it is not held
}

// show registers what the page needs.
func (d *desk) show(mux *http.ServeMux) error {
	mux.Handle("POST /demo/budgets", decode(http.HandlerFunc(d.showBudgets)))
	mux.Handle("POST /demo/guess", decode(http.HandlerFunc(guess)))
	mux.Handle("POST /demo/reset", decode(http.HandlerFunc(d.reset)))
	mux.HandleFunc("POST /demo/forget", forget)
	return demo.Page(mux, page)
}

// each calls f with all that failures are counted by, and the key of the request.
func (d *desk) each(r *http.Request, f func(c counted, key string) error) error {
	for _, c := range d.budgets {
		key, err := c.key(r)
		if err == nil {
			err = f(c, key)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *desk) showBudgets(w http.ResponseWriter, r *http.Request) {
	var budgets []budget
	err := d.each(r, func(c counted, key string) error {
		decision, err := c.limiter.Peek(r.Context(), key)
		if err == nil {
			limit := decision.Limits()[0]
			name := c.name
			if name == "account" && d.devices.of(r, r.Context().Value(accountKey{}).(string)) != "" {
				name = "device"
			}
			budgets = append(budgets, budget{name, limit.Capacity, limit.Remaining, int64(math.Ceil(decision.Held.Seconds()))})
		}
		return err
	})
	if err != nil {
		http.Error(w, "the budgets are not known", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(budgets) // fails only if the client has left
}

// reset forgets failures, as support may do for a customer who has been locked out.
func (d *desk) reset(w http.ResponseWriter, r *http.Request) {
	if err := d.each(r, func(c counted, key string) error { return c.limiter.Reset(r.Context(), key) }); err != nil {
		http.Error(w, "the failures are not forgotten", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// forget takes the cookie of a device away.
func forget(w http.ResponseWriter, _ *http.Request) {
	http.SetCookie(w, &http.Cookie{Name: deviceCookie, Path: "/", MaxAge: -1})
	w.WriteHeader(http.StatusNoContent)
}

// crowd is how many passwords guess tries.
const crowd = 100

// guess tries wrong passwords for an account, all at once, from the address of the request, or with
// ?from=many from as many. It answers with a line of JSON for each answer.
func guess(w http.ResponseWriter, r *http.Request) {
	account := r.Context().Value(accountKey{}).(string)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := make(chan answer)
	var trying sync.WaitGroup
	for n := range crowd {
		from := r.Header.Get("X-Forwarded-For")
		if r.URL.Query().Get("from") == "many" {
			from = fmt.Sprintf("198.18.0.%d", n)
		}
		trying.Go(func() { answers <- try(client, r, account, fmt.Sprint("guess ", n), from) })
	}
	go func() {
		trying.Wait()
		close(answers)
	}()
	w.Header().Set("Content-Type", "application/x-ndjson")
	for a := range answers {
		_ = json.NewEncoder(w).Encode(a) // fails only if the client has left
		_ = http.NewResponseController(w).Flush()
	}
}

// answer is what a login says. Its status is 0 if there was none.
type answer struct {
	Status     int             `json:"status"`
	RetryAfter string          `json:"retry_after,omitempty"`
	Problem    json.RawMessage `json:"problem,omitempty"`
}

func try(client *http.Client, r *http.Request, account, password, from string) (a answer) {
	form := url.Values{"account": {account}, "password": {password}}.Encode()
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, demo.Self(r)+"/login", strings.NewReader(form))
	if err != nil {
		return a
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if from != "" {
		req.Header.Set("X-Forwarded-For", from)
	}
	resp, err := client.Do(req)
	if err != nil {
		return a
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err == nil && strings.Contains(resp.Header.Get("Content-Type"), "json") {
		a.Problem = body
	}
	a.Status, a.RetryAfter = resp.StatusCode, resp.Header.Get("Retry-After")
	return a
}
