package console_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// Each action does what its page says, once: a second one from the same page changes nothing.
func TestActions(t *testing.T) {
	t.Parallel()
	onStores(t, func(t *testing.T, st store.Store) {
		s := open(t, st, "shop", "ada")
		s.fill(t, "k")
		v := serve(t, st, console.AllowAnyone())
		deeds := s.deeds(v, "k")
		for path, form := range deeds {
			a := v.send(http.MethodPost, path, form)
			if a.status != http.StatusOK || a.url.Query().Get("answer") != "done" || !strings.Contains(a.body, "Done, and in the log.") {
				t.Errorf("POST %s: %d %s\n%s", path, a.status, a.url, a.body)
			}
		}
		ctx := t.Context()
		if state, err := s.locker.Inspect(ctx, "k"); err != nil || len(state.Holders) != 0 {
			t.Errorf("the lock: %+v, %v", state, err)
		}
		select {
		case <-s.lease.Context().Done():
		case <-time.After(10 * time.Second):
			t.Error("the holder was not told")
		}
		if !errors.Is(context.Cause(s.lease.Context()), lock.ErrLost) {
			t.Errorf("the holder: %v", context.Cause(s.lease.Context()))
		}
		if state, err := s.permits.Inspect(ctx, "k"); err != nil || len(state.Holders) != 0 {
			t.Errorf("the permit: %+v, %v", state, err)
		}
		if state, err := s.timers.Inspect(ctx, "k-buried"); err != nil || state.State != "waiting" || state.Attempt != 0 {
			t.Errorf("the buried task: %+v, %v", state, err)
		}
		if _, err := s.timers.Inspect(ctx, "k"); err == nil {
			t.Error("the task is there")
		}
		for path, form := range deeds {
			if strings.HasPrefix(path, "limits/") { // which have no version
				continue
			}
			a := v.send(http.MethodPost, path+"?format=json", form)
			if a.status != http.StatusOK || !strings.Contains(a.body, `"outcome": "changed"`) {
				t.Errorf("again: POST %s: %d %s", path, a.status, a.body)
			}
		}
		page := v.page("log")
		if n := strings.Count(page, "because of a test"); n != 12 {
			t.Errorf("%d actions in the log", n)
		}
	})
}

// onStores runs a test on memory, and on the servers that there are.
func onStores(t *testing.T, test func(*testing.T, store.Store)) {
	for name, open := range map[string]func(t *testing.T) store.Store{
		"memory": func(*testing.T) store.Store { return memstore.New() },
		"redis":  func(t *testing.T) store.Store { return redisStore(t, redistest.Start(t)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := open(t)
			t.Cleanup(func() { _ = st.Close() })
			test(t, st)
		})
	}
}

// The outcome of an operation is stated in three ways.
func TestResolutions(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	v := serve(t, st, console.AllowAnyone())
	for outcome, after := range map[string]func(*guard.Attempt, *guard.Result, error) error{
		"never happened": func(a *guard.Attempt, _ *guard.Result, err error) error {
			if a == nil || a.Number() != 2 {
				return fmt.Errorf("%v, %w", a, err)
			}
			return a.Abandon(context.Background())
		},
		"answer lost": func(_ *guard.Attempt, _ *guard.Result, err error) error {
			var lost *guard.NotRetainedError
			if !errors.As(err, &lost) || lost.Status != 201 {
				return fmt.Errorf("%w", err)
			}
			return nil
		},
		"happened": func(_ *guard.Attempt, r *guard.Result, err error) error {
			if r == nil || r.Status != 201 || !strings.Contains(string(r.Data), `{"order":7}`) {
				return fmt.Errorf("%+v, %w", r, err)
			}
			return nil
		},
	} {
		id := s.unknown(t, outcome)
		page := v.page("operations/shop/" + id + "/resolve")
		for _, field := range []string{`value="never happened"`, `value="answer lost"`, `value="happened"`, `name="body"`, `name="why"`} {
			if !strings.Contains(page, field) {
				t.Errorf("no %s", field)
			}
		}
		form := url.Values{"outcome": {outcome}, "why": {"the ledger"}, "status": {"201"}, "type": {"application/json"}, "body": {`{"order":7}`}}
		form.Set("version", hidden(t, page, "version"))
		if a := v.send(http.MethodPost, "operations/shop/"+id+"/resolve", form); a.status != http.StatusOK || a.url.Query().Get("answer") != "done" {
			t.Errorf("%s: %d\n%s", outcome, a.status, a.body)
		}
		if err := after(s.orders.Begin(t.Context(), guard.Operation{Scope: "customer", Key: outcome})); err != nil {
			t.Errorf("%s: %v", outcome, err)
		}
	}
}

// hidden returns the value of a hidden field of a page.
func hidden(t testing.TB, page, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(page, `<input type="hidden" name="`+name+`" value="`)
	value, _, _ := strings.Cut(rest, `"`)
	if !ok {
		t.Fatalf("no field %s in\n%s", name, page)
	}
	return value
}

// A process without the mechanism shows and ends what another one has: by the store alone.
func TestActionsOnAnotherProcess(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	theirs, ours := redisStore(t, server), redisStore(t, server)
	s := open(t, theirs, "shop", "ada")
	s.fill(t, "k")
	p, err := presence.Start(theirs, presence.Service("worker"))
	must(t, err)
	defer func() { _ = p.Stop(context.Background()) }()
	v := serve(t, ours, console.AllowAnyone())
	until(t, "the process is seen", func() bool { return strings.Contains(v.page("processes"), "worker") })
	for path, form := range s.deeds(v, "k") {
		if a := v.send(http.MethodPost, path, form); a.status != http.StatusOK || a.url.Query().Get("answer") != "done" {
			t.Errorf("POST %s: %d\n%s", path, a.status, a.body)
		}
	}
	if d, err := s.limiter.Peek(t.Context(), "k"); err != nil || d.Held == 0 && d.Allowed == false {
		t.Errorf("the limit was neither reset nor held: %+v, %v", d, err)
	}
	if page := v.page("operations/shop"); strings.Contains(page, `name="scope"`) {
		t.Error("it offers to look up a scope and a key without the guard's secret")
	}
	if a := v.send(http.MethodPost, "operations/shop", url.Values{"scope": {"customer"}, "key": {"k"}}); a.status != http.StatusConflict {
		t.Errorf("%d", a.status)
	}
	id := s.unknown(t, "another")
	page := v.page("operations/shop/" + id + "/resolve")
	form := url.Values{"version": {hidden(t, page, "version")}, "outcome": {"happened"}, "why": {"the ledger"}}
	if a := v.send(http.MethodPost, "operations/shop/"+id+"/resolve", form); a.status != http.StatusConflict || strings.Contains(page, `name="body"`) {
		t.Errorf("an answer that cannot be sealed here: %d", a.status)
	}
	// A plan that depends on the key is known to its own process only.
	l, err := tokenbucket.New(theirs, "tiers", tokenbucket.PlanFunc(func(context.Context, string) (tokenbucket.Plan, error) {
		return tokenbucket.PerSecond(1), nil
	}))
	must(t, err)
	defer func() { _ = l.Close() }()
	until(t, "the page of a limiter says so", func() bool {
		return strings.Contains(v.page("limits/tiers"), "known to its own processes only")
	})
	if a := v.send(http.MethodPost, "limits/tiers/-/reset", url.Values{"key": {"k"}, "why": {"because"}}); a.status != http.StatusConflict {
		t.Errorf("%d\n%s", a.status, a.body)
	}
}

// A thousand actions from stale pages, beside steps that change what was seen, change nothing.
func TestStaleActions(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	v := serve(t, st, console.AllowAnyone())
	ctx := context.Background()
	seen := s.deeds(v, "k")
	operation := guard.Operation{Scope: "customer", Key: "k" + t.Name()}
	var id string
	for path := range seen {
		if rest, ok := strings.CutPrefix(path, "operations/shop/"); ok {
			id = strings.TrimSuffix(rest, "/resolve")
		}
	}

	// Each step replaces what was seen, and fails if it is not as the last one has left it.
	for path, step := range map[string]func() error{
		"locks/shop/" + presence.KeyHash("k") + "/release": func() error {
			if err := s.lease.Unlock(ctx); err != nil {
				return err
			}
			var err error
			s.lease, err = s.locker.Lock(ctx, "k")
			return err
		},
		"permits/shop/" + presence.KeyHash("k") + "/release": func() error {
			if err := s.permit.Release(ctx); err != nil {
				return err
			}
			var err error
			s.permit, err = s.permits.Acquire(ctx, "k")
			return err
		},
		"operations/shop/" + id + "/resolve": func() error {
			record, err := s.orders.InspectID(ctx, id)
			if err != nil {
				return err
			}
			if err := s.orders.Resolve(ctx, record, guard.NeverHappened(), "ada", "the next one"); err != nil {
				return err
			}
			a, _, err := s.orders.Begin(ctx, operation)
			if err != nil {
				return err
			}
			return a.CompleteUnknown(ctx)
		},
		"tasks/shop/" + presence.KeyHash("k") + "/cancel": func() error {
			put, err := s.timers.Put(ctx, "k", nil, time.Hour)
			if err == nil && put.Outcome != delay.Moved {
				err = fmt.Errorf("the task was not there: %v", put.Outcome)
			}
			return err
		},
		"tasks/shop/" + presence.KeyHash("k-buried") + "/revive": func() error {
			if outcome, err := s.timers.Cancel(ctx, "k-buried"); err != nil || outcome != delay.Ended {
				return fmt.Errorf("the task was not buried: %v, %w", outcome, err)
			}
			s.bury(t, "k-buried")
			return nil
		},
	} {
		form := seen[path]
		if form == nil {
			t.Fatalf("no action %s", path)
		}
		must(t, step())
		stop := make(chan struct{})
		var steps sync.WaitGroup
		steps.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := step(); err != nil {
					t.Errorf("%s changed something: %v", path, err)
					return
				}
			}
		})
		for i := range 200 {
			if a := v.send(http.MethodPost, path+"?format=json", form); a.status != http.StatusOK || !strings.Contains(a.body, `"changed"`) {
				t.Errorf("%s, action %d: %d %s", path, i, a.status, a.body)
				break
			}
		}
		close(stop)
		steps.Wait()
	}
}

// A fence beyond what a floating-point number holds is the same in pages, JSON and forms.
func TestLargeFences(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	const fence = 1<<53 + 1
	must(t, st.RaiseFence(t.Context(), store.LockKind+"shop", "k", fence-1))
	lease, err := s.locker.Lock(t.Context(), "k")
	must(t, err)
	if lease.Fence().Number != fence {
		t.Fatalf("fence %d", lease.Fence().Number)
	}
	v := serve(t, st, console.AllowAnyone())
	path := "locks/shop/" + presence.KeyHash("k")
	var one struct{ Holders []struct{ Fence string } }
	v.json(path, &one)
	if page := v.page(path); len(one.Holders) != 1 || one.Holders[0].Fence != "9007199254740993" || !strings.Contains(page, "release?fence=9007199254740993") {
		t.Errorf("%+v\n%s", one, page)
	}
	page := v.page(path + "/release?fence=9007199254740993")
	if a := v.send(http.MethodPost, path+"/release", url.Values{"fence": {hidden(t, page, "fence")}, "why": {"it hangs"}}); a.url.Query().Get("answer") != "done" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// While the store is down, pages show what this process knows, and say so.
func TestTheStoreIsDown(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (store.Store, func()){
		"redis": func(t *testing.T) (store.Store, func()) {
			server := redistest.Start(t)
			return redisStore(t, server), server.Stop
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st, stop := start(t)
			s := open(t, st, "shop", "ada")
			s.fill(t, "k")
			v := serve(t, st, console.AllowAnyone())
			v.page("")
			stop()
			until(t, "the page says so", func() bool { return strings.Contains(v.page(""), "The store does not work") })
			for path, want := range map[string]int{
				"": 200, "monitor": 200, "monitor/lock/shop": 200, "processes": 200, "locks": 200, "locks/shop": 200, "log": 200,
				"locks/shop/" + presence.KeyHash("k"): 503, "operations/shop": 200, "tasks/shop": 200,
			} {
				began := time.Now()
				a := v.get(path)
				if a.status != want || !strings.Contains(a.body, "The store does not") && !strings.Contains(a.body, "store is down") {
					t.Errorf("%q: %d\n%s", path, a.status, a.body)
				}
				if took := time.Since(began); took > 5*time.Second {
					t.Errorf("%q: %v", path, took)
				}
			}
			if page := v.page("monitor"); !strings.Contains(page, "shop") {
				t.Errorf("this process is not shown:\n%s", page)
			}
		})
	}
}

// until polls until a condition holds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("not in a minute: %s", what)
		}
		<-time.After(20 * time.Millisecond)
	}
}

func redisStore(t testing.TB, server *redistest.Server) *redisstore.Store {
	t.Helper()
	st, err := redisstore.New(server.Client(), redisstore.WithTimeout(5*time.Second)) // on a busy machine, too
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// An action whose client has left is carried out, and in the log.
func TestAClientThatLeft(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	c := console.New(st, console.AllowAnyone(), console.WithLogger(slog.New(slog.DiscardHandler)))
	defer c.Close()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	form := url.Values{"fence": {text(s.lease.Fence().Number)}, "why": {"it hangs"}}
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/locks/shop/"+presence.KeyHash("k")+"/release", strings.NewReader(form.Encode()))
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	c.ServeHTTP(httptest.NewRecorder(), req)
	held, err := s.locker.Inspect(t.Context(), "k")
	must(t, err)
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/log", nil))
	if logged := strings.Contains(w.Body.String(), "it hangs"); logged != (len(held.Holders) == 0) {
		t.Errorf("%d holders, logged: %t", len(held.Holders), logged)
	}
}

// An action is answered as not logged if the store does not take the entry of the log.
func TestALogThatIsDown(t *testing.T) {
	t.Parallel()
	memory := memstore.New()
	defer memory.Close()
	st := storetest.NewFaulty(memory)
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	v := serve(t, st, console.AllowAnyone())
	st.Break(storetest.PutDocument, storetest.Full)
	form := url.Values{"fence": {text(s.lease.Fence().Number)}, "why": {"it hangs"}}
	for _, want := range []string{"Done, but not in the log", "nothing was done. That is not in the log"} {
		a := v.send(http.MethodPost, "locks/shop/"+presence.KeyHash("k")+"/release", form)
		if !strings.Contains(v.get(strings.TrimPrefix(a.url.String(), v.root)).body, want) && !strings.Contains(a.body, want) {
			t.Errorf("%d %s: no %q\n%s", a.status, a.url, want, a.body)
		}
	}
}

// Close ends the reads of the store that pages have begun, however slow it is.
func TestCloseEndsReads(t *testing.T) {
	t.Parallel()
	memory := memstore.New()
	defer memory.Close()
	st := storetest.NewFaulty(memory)
	c := console.New(st, console.AllowAnyone(), console.WithLogger(slog.New(slog.DiscardHandler)))
	st.Break(storetest.ListDocuments, storetest.Hung)
	calls := st.Calls(storetest.ListDocuments)
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		c.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}()
	until(t, "the page reads", func() bool { return st.Calls(storetest.ListDocuments) > calls })
	must(t, c.Close())
	<-answered
	after := st.Calls(storetest.ListDocuments)
	c.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if n := st.Calls(storetest.ListDocuments); n != after {
		t.Errorf("%d reads after Close", n-after)
	}
}
