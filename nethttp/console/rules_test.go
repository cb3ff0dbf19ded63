package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// followed is rules in a state.
type followed struct {
	mu      sync.Mutex
	is      inspect.Rules
	history []inspect.RulesVersion
	err     error
}

func (f *followed) Inspect() inspect.Rules {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.is
}

func (f *followed) InspectHistory(context.Context) ([]inspect.RulesVersion, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.history, f.err
}

func (f *followed) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
}

// The parts of a document that may be keys.
const inDocument, inRefused, inError, inPath = "key-in-document", "key-in-refused", "key-in-error", "key-in-path"

// stale is rules whose next document has errors.
func stale() *followed {
	return &followed{
		is: inspect.Rules{
			Source: "store", Name: "shop", State: "stale", Since: time.Now().Add(-time.Hour), Version: "v7", Revision: 1<<53 + 1,
			Hash: "0123456789abcdef", At: time.Now().Add(-2 * time.Hour),
			Document: []byte("limits:\n    api: " + inDocument + hostile + "\n"), Refused: []byte(inRefused + "<b>\x1b"),
			Errors: []inspect.RulesError{{Line: 31, Column: 17, Path: inPath, Text: inError + hostile}},
		},
		history: []inspect.RulesVersion{
			{Number: 1<<53 + 3, Hash: "fedcba9876543210", Bytes: 17, By: "bob", Why: "more of it" + hostile, At: time.Now().Add(-3 * time.Minute)},
			{Number: 1<<53 + 1, Hash: "0123456789abcdef", Bytes: 16},
		},
	}
}

// The page has what is in force, since when, the places of errors and the versions, and nothing of a
// document that may be a key, unless keys are shown.
func TestRules(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]console.Option{"keys hidden": nil, "keys shown": {console.ShowKeys()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := memstore.New()
			defer st.Close()
			v := serve(t, st, append(opts, console.AllowAnyone(), console.Rules(stale()))...)
			if first := v.page(""); !strings.Contains(first, `href="./rules"`) {
				t.Errorf("not linked:\n%s", first)
			}
			page, json := v.page("rules"), v.page("rules?format=json")
			for _, text := range []string{"shop", "store", "stale", "v7", "9007199254740993", "9007199254740995", "0123456789abcdef",
				"fedcba9876543210", "bob", "more of it"} {
				if !strings.Contains(page, text) || !strings.Contains(json, text) {
					t.Errorf("no %q in\n%s\n%s", text, page, json)
				}
			}
			for _, text := range []string{"31:17", "for 60\u00a0min", "for 2\u00a0h\u00a00\u00a0min", "3\u00a0min ago", "in force here", "this process"} {
				if !strings.Contains(page, text) {
					t.Errorf("no %q in\n%s", text, page)
				}
			}
			for _, key := range []string{inDocument, inRefused, inError, inPath} {
				for _, text := range []string{page, json} {
					if strings.Contains(text, key) != (name == "keys shown") {
						t.Errorf("%s:\n%s", key, text)
					}
				}
			}
			if strings.ContainsAny(page, "\x00\x1b\u202e") || strings.Contains(page, "<script>alert") {
				t.Errorf("hostile texts in\n%s", page)
			}
			if name == "keys shown" && !strings.Contains(page, "   2      api: "+inDocument) {
				t.Errorf("the document is not as it is:\n%s", page)
			}
			for _, path := range []string{"", "processes", "log", "monitor"} {
				for _, key := range []string{inDocument, inRefused, inError, inPath} {
					if strings.Contains(v.page(path), key) {
						t.Errorf("%s has %s", path, key)
					}
				}
			}
			if a := v.send(http.MethodPost, "rules", url.Values{"why": {"more"}}); a.status != http.StatusMethodNotAllowed {
				t.Errorf("a form: %d", a.status)
			}
		})
	}
}

// A process without rules has no such page.
func TestWithoutRules(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	v := serve(t, st, console.AllowAnyone())
	if a := v.get("rules"); a.status != http.StatusNotFound || strings.Contains(v.page(""), "./rules") {
		t.Errorf("%d\n%s", a.status, v.page(""))
	}
}

// What is said of this process needs no store; an error of the source is shown; a document is cut.
func TestRulesWithoutTheStore(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	r := stale()
	r.is.Errors, r.is.Refused, r.err = []inspect.RulesError{{Text: "no such file"}}, nil, fmt.Errorf("%w: secret-address", store.ErrUnavailable)
	r.history = nil
	for range 110 {
		r.is.Errors = append(r.is.Errors, inspect.RulesError{Line: 1, Column: 1, Text: "x"})
	}
	r.is.Document = []byte(strings.Repeat("x: y\n", 1<<16))
	v := serve(t, st, console.AllowAnyone(), console.ShowKeys(), console.Rules(r))
	page := v.page("rules")
	for _, text := range []string{"no such file", "cannot be listed", "There are 11 more", "and more: the document has 327680 bytes", "stale"} {
		if !strings.Contains(page, text) {
			t.Errorf("no %q in\n%.2000s", text, page)
		}
	}
	if len(page) > 400<<10 || strings.Contains(page, "secret-address") {
		t.Errorf("%d bytes", len(page))
	}
}

// Now tells of rules that are stale, of this process also if its presence began without them, and of
// other processes.
func TestNowTellsOfStaleRules(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	began, err := presence.Start(st, presence.Service("early"))
	must(t, err)
	t.Cleanup(func() { _ = began.Stop(context.Background()) })
	own, other := stale(), stale()
	own.is.Name, other.is.Name = "own", "other"
	second := struct{ *memstore.Store }{st}
	p, err := presence.Start(&second, presence.Service("worker"), presence.WithRules(other))
	must(t, err)
	t.Cleanup(func() { _ = p.Stop(context.Background()) })
	v := serve(t, st, console.AllowAnyone(), console.Rules(own))
	var now struct {
		Troubles []struct{ Severity, What string }
	}
	told := func() string {
		v.json("", &now)
		var all []string
		for _, trouble := range now.Troubles {
			if strings.HasPrefix(trouble.What, "rules ") {
				all = append(all, trouble.Severity+" "+trouble.What)
			}
		}
		return strings.Join(all, "\n")
	}
	both := []string{"warning rules other (store) are stale in 1 process: worker on ", "warning rules own (store) are stale in 1 process: early on "}
	testpace.Eventually(t, 20*time.Second, "both are told", func() bool {
		text := told()
		return strings.Contains(text, both[0]) && strings.Contains(text, both[1])
	})
	for _, path := range []string{"processes", "rules"} {
		if page := v.page(path); !strings.Contains(page, "own") || !strings.Contains(page, "other") {
			t.Errorf("%s:\n%s", path, page)
		}
	}
	own.change(func() { own.is.State, own.is.Errors = "current", nil })
	other.change(func() { other.is.State, other.is.Errors, other.err = "current", nil, errors.New("x") })
	testpace.Eventually(t, 20*time.Second, "nothing is told", func() bool { return told() == "" })
	if page := v.page("rules"); !strings.Contains(page, "are current") {
		t.Error(page)
	}
}
