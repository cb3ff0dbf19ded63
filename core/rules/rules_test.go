package rules_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// What a document says is in force, and what it leaves out is as the program made it.
func TestADocumentIsInForce(t *testing.T) {
	s := newService(t)
	ok(t, s.signup.SetEnforcement(tokenbucket.Enforcement{Mode: tokenbucket.Shadow}))
	ok(t, s.reports.SetCapacities(2, map[string]int{"code": 9}))
	api, signup, reports, gate := s.api.Rule(), s.signup.Rule(), s.reports.Rule(), s.gate.Rule()
	d := document("{}")
	r := open(t, d.source(), s.all())
	tiers := semaphore.TierShares{Normal: 0.8, Low: 0.6, Background: 0.4}
	mode := func(m tokenbucket.Mode) tokenbucket.Enforcement { return tokenbucket.Enforcement{Mode: m} }
	for _, c := range []struct {
		document string
		want     func()
	}{
		{"{}", func() {}},
		{"limits: { api: { limit: 7/1m } }", func() { api.Plan = tokenbucket.PerMinute(7) }},
		{"limits: { api: { candidate: [7/1m] } }", func() { api.Candidate = tokenbucket.Limits{tokenbucket.PerMinute(7)} }},
		{"limits: { api: { overrides: [{ keys: [k, l*], limit: 7/1m }] } }", func() {
			api.Plan = tokenbucket.Overrides(tokenbucket.PerMinute(10), map[string]tokenbucket.Plan{"k": tokenbucket.PerMinute(7), "l*": tokenbucket.PerMinute(7)})
		}},
		{"limits: { api: { limits: [1/1s, 7/1m], overrides: [{ keys: [k], limits: [2/1s, 9/1m] }] } }", func() {
			api.Plan = tokenbucket.Overrides(
				tokenbucket.Limits{tokenbucket.PerSecond(1), tokenbucket.PerMinute(7)},
				map[string]tokenbucket.Plan{"k": tokenbucket.Limits{tokenbucket.PerSecond(2), tokenbucket.PerMinute(9)}},
			)
		}},
		{"limits: { api: { mode: shadow }, signup: { mode: off } }", func() { api.Enforcement, signup.Enforcement = mode(tokenbucket.Shadow), mode(tokenbucket.Off) }},
		{"limits: { api: { enforce: 10% }, signup: { enforce: 20% } }", func() { api.Enforcement.Share, signup.Enforcement = 0.1, tokenbucket.Enforcement{Share: 0.2} }},
		{"mode: enforce", func() { signup.Enforcement = tokenbucket.Enforcement{Share: 1} }},
		{"mode: shadow", func() { api.Enforcement, signup.Enforcement = mode(tokenbucket.Shadow), mode(tokenbucket.Shadow) }},
		{"mode: off", func() {
			api.Enforcement, signup.Enforcement, reports.Off, gate.Off = mode(tokenbucket.Off), mode(tokenbucket.Off), true, true
		}},
		{"mode: off\nlimits: { api: { mode: enforce }, signup: { enforce: 10% } }\nsemaphores: { gate: { mode: enforce } }", func() {
			signup.Enforcement, reports.Off = mode(tokenbucket.Off), true
		}},
		{"mode: shadow\nlimits: { api: { mode: enforce, enforce: 50%, limit: 7/1m } }\nsemaphores: { gate: { mode: off } }", func() {
			api.Plan, api.Enforcement.Share, signup.Enforcement, gate.Off = tokenbucket.PerMinute(7), 0.5, mode(tokenbucket.Shadow), true
		}},
		{"semaphores: { reports: { capacity: 7 } }", func() { reports.Capacity, reports.ByKey = 7, nil }},
		{"semaphores: { reports: { overrides: [{ keys: [k, l*], capacity: 7 }] } }", func() { reports.ByKey = map[string]int{"k": 7, "l*": 7} }},
		{"semaphores: { gate: { min: 3, max: 9, target: 2s, tiers: { normal: 80%, low: 60%, background: 40% } } }", func() {
			gate.Floor, gate.Ceiling, gate.Target, gate.Tiers = 3, 9, 2*time.Second, tiers
		}},
		{"semaphores: { reports: { tiers: { normal: 80%, low: 60%, background: 40% } } }", func() { reports.Tiers = tiers }},
	} {
		before := []any{api, signup, reports, gate}
		c.want()
		d.set(c.document)
		ok(t, r.Reload(t.Context()))
		for i, got := range []any{s.api.Rule(), s.signup.Rule(), s.reports.Rule(), s.gate.Rule()} {
			want := []any{api, signup, reports, gate}[i]
			if !reflect.DeepEqual(got, want) && fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) && !samePlans(got, want) {
				t.Errorf("%s:\n%+v, want\n%+v", c.document, got, want)
			}
		}
		api, signup, reports, gate = before[0].(tokenbucket.Rule), before[1].(tokenbucket.Rule), before[2].(semaphore.Rule), before[3].(semaphore.Rule)
	}
}

// samePlans compares rules of limiters whose plans have overrides.
func samePlans(a, b any) bool {
	x, isLimit := a.(tokenbucket.Rule)
	y, _ := b.(tokenbucket.Rule)
	if !isLimit || !reflect.DeepEqual(x.Plan, y.Plan) { // through the pointer
		return false
	}
	x.Plan, y.Plan = nil, nil
	return reflect.DeepEqual(x, y)
}

// A bad document changes nothing, whatever is bad about it; a good one ends it, also the same as
// before.
func TestABadDocumentChangesNothing(t *testing.T) {
	const good = "version: 7\nlimits: { api: { limit: 7/1m } }"
	s := newService(t)
	d := document(good)
	var changes []rules.State
	r := open(t, d.source(), s.all(), rules.OnChange(func(a rules.Applied) { changes = append(changes, a.State) }))
	first := r.Applied()
	if first.Version != "7" || len(first.Hash) != 16 || first.Revision != 0 || first.At.IsZero() || first.State != rules.Current {
		t.Errorf("%+v", first)
	}
	rows := rules.BadDocuments()
	for name, text := range rows {
		d.set(text)
		err := r.Reload(t.Context())
		a := r.Applied()
		if len(errorsIn(err)) == 0 || a.Err == nil || a.State != rules.Stale {
			t.Errorf("%s: Reload returns %v, and the rules are %v because of %v", name, err, a.State, a.Err)
		}
		if again := r.Reload(t.Context()); !reflect.DeepEqual(errorsIn(again), errorsIn(err)) {
			t.Errorf("%s: and then %v", name, again)
		}
		if got := s.api.Rule().Plan; got != tokenbucket.PerMinute(7) {
			t.Errorf("%s: the limit is %v", name, got)
		}
		if in := r.Inspect(); string(in.Document) != good || string(in.Refused) != text || len(in.Errors) != len(errorsIn(err)) || in.State != "stale" {
			t.Errorf("%s: %+v", name, in)
		}
		if _, err := rules.Open(t.Context(), d.source(), quiet(), s.all()); len(errorsIn(err)) == 0 {
			t.Errorf("%s: Open returns %v", name, err)
		}
		d.set(good)
		ok(t, r.Reload(t.Context()))
		if a = r.Applied(); a.State != rules.Current || a.Err != nil || a.At != first.At || a.Hash != first.Hash {
			t.Errorf("%s: after the good document: %+v", name, a)
		}
	}
	if len(changes) < 2*len(rows) || changes[0] != rules.Stale || changes[len(changes)-1] != rules.Current {
		t.Errorf("%d calls of OnChange: %v", len(changes), changes)
	}
}

func TestNames(t *testing.T) {
	s := newService(t)
	for text, want := range map[string][]string{
		"limits: { api: {}, other: {} }\nsemaphores: { signup: {}, none: {} }": {
			"1:20: limits.other: no mechanism has this name", "2:15: semaphores.signup: the mechanism of this name is of another kind: its rule stands under limits",
			"2:27: semaphores.none: no mechanism has this name",
		},
		"limits: { next: { limit: 5/1m } }\nsemaphores: { next: {}, soon: {} }": {"2:15: semaphores.next: the mechanism of this name is of another kind: its rule stands under limits"},
		"semaphores: { soon: {} }\nlimits: { soon: {} }":                        nil,
		// What only the mechanism finds.
		"semaphores:\n  reports: { min: 1, max: 2, target: 1s }\n  gate: { capacity: 5 }\nlimits: { api: { limit: 9/1m } }": {
			"2:3: semaphores.reports: semaphore: the capacity is fixed, and the rule has an adaptive one", "3:3: semaphores.gate: semaphore: invalid capacity: it is adaptive, and",
		},
		"semaphores: { gate: { overrides: [{ keys: [k], capacity: 2 }] } }": {"1:15: semaphores.gate: "},
	} {
		r, err := rules.Open(t.Context(), document(text).source(), quiet(), s.all(), rules.Optional("limits.next", "soon"))
		if err == nil {
			ok(t, r.Close())
		}
		list := errorsIn(err)
		if len(list) != len(want) || err != nil && len(list) == 0 {
			t.Errorf("%s: %v", text, err)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(list[i].Error(), want[i]) {
				t.Errorf("%s: %v, want %s", text, &list[i], want[i])
			}
		}
		if got := s.api.Rule().Plan; got != tokenbucket.PerMinute(10) {
			t.Errorf("%s: the limit of api is %v", text, got)
		}
	}
}

// A mechanism that does not take the document leaves all others as they were.
func TestAllOrNone(t *testing.T) {
	s := newService(t)
	d := document("limits: { api: { limit: 7/1m } }")
	r := open(t, d.source(), rules.For(s.api, s.reports, s.signup, s.gate))
	ok(t, s.signup.Close())
	for range 2 {
		d.set("limits: { api: { limit: 8/1m } }\nsemaphores: { reports: { capacity: 8 } }")
		if err := r.Reload(t.Context()); !errors.Is(err, tokenbucket.ErrClosed) || !strings.Contains(err.Error(), "limits.signup") {
			t.Fatal(err)
		}
		wantState(t, r, rules.Stale)
		if got := s.api.Rule().Plan; got != tokenbucket.PerMinute(7) || s.reports.Rule().Capacity != 2 {
			t.Errorf("api has %v, and reports a capacity of %d", got, s.reports.Rule().Capacity)
		}
	}
	d.set("limits: { api: { limit: 7/1m } }")
	ok(t, r.Reload(t.Context()))
	wantState(t, r, rules.Current)
}

func TestOpenRefuses(t *testing.T) {
	s, d := newService(t), document("{}")
	var none *tokenbucket.Limiter
	for name, c := range map[string]struct {
		src  rules.Source
		opts []rules.Option
	}{
		"no source":               {nil, nil},
		"no path":                 {rules.File(""), nil},
		"no function":             {rules.Func(nil), nil},
		"no store":                {rules.Store(nil, "api"), nil},
		"no name":                 {rules.Store(s.st, ""), nil},
		"a version as a name":     {rules.Store(s.st, "api@3"), nil},
		"no limiter":              {d.source(), []rules.Option{rules.For(none)}},
		"no semaphore":            {d.source(), []rules.Option{rules.For((*semaphore.Semaphore)(nil))}},
		"nothing":                 {d.source(), []rules.Option{rules.For(nil)}},
		"a text":                  {d.source(), []rules.Option{rules.For("api")}},
		"too short an interval":   {d.source(), []rules.Option{rules.Every(time.Millisecond)}},
		"a history of a function": {d.source(), []rules.Option{rules.LastGood()}},
		"a file that is missing":  {rules.File(t.TempDir() + "/none.yaml"), nil},
		"a directory":             {rules.File(t.TempDir()), nil},
		"nothing in the store":    {rules.Store(s.st, "api"), nil},
	} {
		if _, err := rules.Open(t.Context(), c.src, c.opts...); err == nil || !strings.HasPrefix(err.Error(), "rules: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := rules.Open(ended, d.source()); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if d.reads.Load() > 0 {
		t.Error("the source was read")
	}
}

// The source is polled within the interval. An unchanged document costs a read.
func TestPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newService(t), document("limits: { api: { limit: 7/1m } }")
		r := open(t, d.source(), s.all())
		before := r.Applied()
		time.Sleep(time.Hour)
		if n := d.reads.Load(); n < 720 || n > 810 {
			t.Errorf("%d reads in an hour", n)
		}
		if r.Applied() != before {
			t.Errorf("%+v, want %+v", r.Applied(), before)
		}
		for i := range 20 {
			d.set(fmt.Sprintf("limits: { api: { limit: %d/1m } }", 20+i))
			time.Sleep(5*time.Second + time.Millisecond)
			if got := s.api.Rule().Plan; got != tokenbucket.PerMinute(int64(20+i)) {
				t.Errorf("%v after 5 s", got)
			}
		}
		ok(t, r.Close())
		n := d.reads.Load()
		time.Sleep(time.Minute)
		if d.reads.Load() > n {
			t.Error("it is read after Close")
		}
		if err := r.Reload(t.Context()); !errors.Is(err, rules.ErrClosed) {
			t.Errorf("Reload after Close: %v", err)
		}
		if got := s.api.Rule().Plan; got != tokenbucket.PerMinute(39) {
			t.Errorf("Close has changed the limit to %v", got)
		}
		ok(t, r.Close())
	})
}

// A source that cannot be read is no bad document: the rules are stale at the third poll.
func TestASourceThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := errors.New("down")
		s, d, l := newService(t), document("version: 7\nlimits: { api: { limit: 7/1m } }"), &logs{}
		r, err := rules.Open(t.Context(), d.source(), s.all(), l.option())
		ok(t, err)
		defer func() { ok(t, r.Close()) }()
		d.fail(down)
		time.Sleep(2 * 5 * time.Second)
		wantState(t, r, rules.Current)
		time.Sleep(5 * time.Second)
		wantState(t, r, rules.Stale)
		if a := r.Applied(); !errors.Is(a.Err, down) || a.Version != "7" {
			t.Errorf("%+v", a)
		}
		if in := r.Inspect(); len(in.Errors) != 1 || in.Errors[0].Text != "down" {
			t.Errorf("%+v", in)
		}
		if err := r.Reload(t.Context()); !errors.Is(err, down) {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		d.fail(nil)
		time.Sleep(5 * time.Second)
		wantState(t, r, rules.Current)
		if n := strings.Count(l.String(), "\n"); n != 3 {
			t.Errorf("%d lines:\n%s", n, l)
		}
	})
}

// A function that does not return in time is one that fails, and delays Close by 2 s at most.
func TestASourceThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hangs atomic.Bool
		r := open(t, rules.Func(func(ctx context.Context) ([]byte, error) {
			if hangs.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return []byte("{}"), nil
		}))
		hangs.Store(true)
		time.Sleep(3*5*time.Second + 3*time.Second)
		wantState(t, r, rules.Stale)
		if err := r.Reload(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		began := time.Now()
		ok(t, r.Close())
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Close takes %v", took)
		}
	})
}

// What is in force stays so after Close, although a Reload was in flight.
func TestCloseWaitsForAReload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newService(t), document("limits: { api: { limit: 7/1m } }")
		var slow atomic.Bool
		r := open(t, rules.Func(func(context.Context) ([]byte, error) {
			if slow.Load() {
				time.Sleep(time.Second)
			}
			return []byte(*d.document.Load()), nil
		}), s.all())
		d.set("limits: { api: { limit: 8/1m } }")
		slow.Store(true)
		ended := make(chan error, 1)
		go func() { ended <- r.Reload(t.Context()) }()
		synctest.Wait()
		ok(t, r.Close())
		closed := s.api.Rule().Plan
		ok(t, <-ended)
		if got := s.api.Rule().Plan; got != closed {
			t.Errorf("the limit is %v after Close, and was %v when it returned", got, closed)
		}
	})
}

// The log has one line for each change, with version and hash, and no text of the document.
func TestLog(t *testing.T) {
	const secret = "alice@example.com"
	s, l := newService(t), &logs{}
	d := document("version: 7\nlimits: { api: { limit: 7/1m, overrides: [{ keys: [" + secret + "], limit: 9/1m, comment: " + secret + " }] } }")
	r, err := rules.Open(t.Context(), d.source(), s.all(), l.option())
	ok(t, err)
	defer func() { ok(t, r.Close()) }()
	good := *d.document.Load()
	for _, text := range []string{
		good, good + "\n" + secret + ": 1", good + "\n" + secret + ": 1", good, good, strings.Replace(good, "7", "8", 1),
		"limits: { api: { overrides: [{ keys: [" + secret + ", " + secret + "], limit: " + secret + " }] } }", "version: 9",
	} {
		d.set(text)
		_ = r.Reload(t.Context())
	}
	want := `level=INFO msg="lockkeeper: rules are in force" rules=func version=7 revision=0 hash=
level=WARN msg="lockkeeper: rules are stale: the document is refused, and the last good one stays in force" rules=func version=7 hash= errors=1 line=3 column=1
level=INFO msg="lockkeeper: rules are current again" rules=func version=7 hash=
level=INFO msg="lockkeeper: rules are in force" rules=func version=8 revision=0 hash=
level=WARN msg="lockkeeper: rules are stale: the document is refused, and the last good one stays in force" rules=func version=8 hash= errors=2 line=1 column=58
level=INFO msg="lockkeeper: rules are in force" rules=func version=9 revision=0 hash=
level=INFO msg="lockkeeper: rules are current again" rules=func version=9 hash=
`
	var got strings.Builder
	for line := range strings.Lines(l.String()) {
		before, rest, found := strings.Cut(line, "hash=")
		got.WriteString(before)
		if found {
			got.WriteString("hash=" + strings.TrimLeft(rest, "0123456789abcdef"))
		}
	}
	if got.String() != want || strings.Contains(l.String(), secret) {
		t.Errorf("%s\nwant\n%s", got.String(), want)
	}
}

// A waiter keeps its place when a document changes, and used tokens stay used.
func TestStateIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newService(t), document("limits: { api: { limit: 10/1h } }\nsemaphores: { reports: { capacity: 1 } }")
		r := open(t, d.source(), s.all())
		for range 10 {
			if !must(s.api.Allow(t.Context(), "k")).Allowed {
				t.Fatal("denied")
			}
		}
		held := must(s.reports.Acquire(t.Context(), "k"))
		var order []int
		var mu sync.Mutex
		var waiting sync.WaitGroup
		for i := range 5 {
			waiting.Go(func() {
				p := must(s.reports.Acquire(t.Context(), "k"))
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Second + time.Duration(i)*time.Millisecond) // no two end at once
				_ = p.Release(t.Context())
			})
			synctest.Wait()
		}
		d.set("limits: { api: { limit: 100/1h } }\nsemaphores: { reports: { capacity: 2 } }")
		ok(t, r.Reload(t.Context()))
		if d := must(s.api.Peek(t.Context(), "k")); d.Limits()[0].Remaining != 90 {
			t.Errorf("%d tokens are left, want 90", d.Limits()[0].Remaining)
		}
		synctest.Wait()
		if len(order) != 1 {
			t.Errorf("%v have permits", order)
		}
		ok(t, held.Release(t.Context()))
		waiting.Wait()
		if !slices.IsSorted(order) || len(order) != 5 {
			t.Errorf("the order is %v", order)
		}
	})
}

var reloads = flag.Int("reloads", 0, "how often TestReloadsBesideDecisions changes the document")

// Every decision is by one of two documents, and none is lost, while they take turns.
func TestReloadsBesideDecisions(t *testing.T) {
	n := 100_000
	switch {
	case *reloads > 0:
		n = *reloads
	case testing.Short():
		n = 3_000
	case testpace.Raced:
		n = 20_000
	}
	st := memstore.New()
	defer st.Close()
	api := must(tokenbucket.New(st, "api", tokenbucket.PerDay(1)))
	used := must(tokenbucket.New(st, "used", tokenbucket.PerDay(1)))
	reports := must(semaphore.New(st, "reports", 1))
	documents := [2]string{
		"limits: { api: { limit: 1000000000/1h name=plenty }, used: { limit: 1000000000/87840h } }\n" +
			"semaphores: { reports: { capacity: 10, tiers: { normal: 10%, low: 10%, background: 10% } } }",
		"limits: { api: { limit: 1/8784h name=little, mode: shadow }, used: { mode: shadow, limit: 1000000000/87840h, candidate: 1/1h } }\n" +
			"semaphores: { reports: { capacity: 2, tiers: { normal: 50%, low: 50%, background: 50% } } }",
	}
	d := document(documents[0])
	r := open(t, d.source(), rules.For(api, used, reports), rules.Every(time.Hour))
	var done atomic.Bool
	var workers sync.WaitGroup
	var charged, seen atomic.Int64
	worker := func(f func() error) {
		workers.Go(func() {
			for !done.Load() {
				if err := f(); err != nil {
					t.Error(err)
					return
				}
				runtime.Gosched() // a reload takes longer than what the others do
			}
		})
	}
	worker(func() error {
		d, err := api.Allow(t.Context(), "k")
		if err != nil {
			return err
		}
		name := d.Limits()[0].Name
		if !d.Allowed || d.Enforced() != (name == "plenty") {
			return fmt.Errorf("%v by the limit %s, enforced: %v", d.Allowed, name, d.Enforced())
		}
		if name == "little" {
			seen.Add(1)
		}
		return nil
	})
	worker(func() error {
		d, err := used.Allow(t.Context(), "k")
		if err == nil && d.Allowed && !d.Shadow {
			charged.Add(1)
		}
		return err
	})
	low := reports.Tier(semaphore.Low)
	for range 2 {
		worker(func() error {
			p, err := low.Acquire(t.Context(), "k") // waits for the others
			if err != nil {
				return err
			}
			if _, err := low.TryAcquireN(t.Context(), "k", 2); !errors.Is(err, semaphore.ErrInvalidWeight) {
				return fmt.Errorf("2 permits: %w", err)
			}
			return p.Release(t.Context())
		})
	}
	began := time.Now()
	for i := range n {
		d.set(documents[(i+1)%2])
		ok(t, r.Reload(t.Context()))
	}
	t.Logf("%d reloads in %v, %d decisions in shadow, %d charged", n, time.Since(began), seen.Load(), charged.Load())
	done.Store(true)
	workers.Wait()
	left := must(used.Peek(t.Context(), "k")).Limits()[0]
	if lost := charged.Load() - (left.Capacity - left.Remaining); lost < 0 || lost > 10+int64(time.Since(began).Seconds()*4) { // what has come back
		t.Errorf("%d were charged, and %d of %d are left", charged.Load(), left.Remaining, left.Capacity)
	}
	if state := must(reports.Inspect(t.Context(), "k")); state.InUse != 0 || state.Waiting != 0 {
		t.Errorf("%+v", state)
	}
	if seen.Load() == 0 {
		t.Error("no decision was by the second document")
	}
}
