package operate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is one that has a limiter, with a slot for each number of denials; one call is allowed in each.
func process(id string, open time.Duration, denied ...uint32) presence.Process {
	m := presence.Mechanism{Kind: "rate_limit", Name: "api", Settings: "5/1s", Members: 1}
	m.Open = open
	for _, n := range denied {
		var s presence.Slot
		s.Counts[live.Passed], s.Counts[live.Denied] = 1, n
		s.Took[3] = 1
		m.Slots = append(m.Slots, s)
		m.Passed++
		m.Denied += uint64(n)
	}
	return presence.Process{
		ID: id, Service: "shop", Host: "host", Version: "0.2.0", Stores: []presence.Store{{Kind: "redis"}}, Mechanisms: []presence.Mechanism{m},
	}
}

// A chart adds up the slots of the same age, whenever processes have started and written them.
func TestChart(t *testing.T) {
	full := make([]uint32, Points)
	for i := range full {
		full[i] = 1
	}
	fleet := []presence.Process{
		process("long", time.Second, full...), process("new", 4*time.Second, 7, 9), process("late", 11*time.Second, 100, 200),
		process("no history", 0),
	}
	rows := Rows(fleet)
	if len(rows) != 1 || len(rows[0].Parts) != 4 || rows[0].Members != 4 {
		t.Fatalf("%+v", rows)
	}
	r := rows[0]
	chart := r.Chart()
	var denied []uint64
	sum := uint64(0)
	for _, p := range chart {
		denied = append(denied, p.Denied)
		sum += p.Denied
	}
	if want := []uint64{1, 101, 201, 8, 10}; len(denied) != Points || !slices.Equal(denied[Points-5:], want) {
		t.Errorf("the last points have %v denials, want %v", denied[len(denied)-5:], want)
	}
	if want := r.Denied; sum != want {
		t.Errorf("the chart has %d denials, the totals %d", sum, want)
	}
	if last := r.Latest(); last.Denied != 1+7+100 || !last.Measured {
		t.Errorf("in the last slots that have ended: %+v", last)
	}
	if minute := r.Minute(); minute.Denied != 12+7+100 {
		t.Errorf("in the last minute: %+v", minute)
	}
}

// Each trouble is listed once, the worst first.
func TestTroubles(t *testing.T) {
	down := process("a", 0, 0, 0)
	down.Stores[0].Down = true
	down.Stores[0].Findings = []store.Finding{{Found: "it evicts", Weakens: "locks end", Remedy: "noeviction", Refused: store.Eviction}}
	other := process("b", 0, 0, 0)
	other.Stores[0] = down.Stores[0]
	other.Version = "0.3.0"
	other.Mechanisms[0].Settings = "6/1s"
	slow := process("c", 0, 0, 0)
	slow.Mechanisms[0].Kind, slow.Mechanisms[0].Name = "lock", "stock"
	slow.Mechanisms[0].Slots[0].Took = [live.Buckets]uint16{11: 5}
	slow.Mechanisms[0].Slots[0].Counts[live.Failed] = 1
	slow.Mechanisms[0].Slots[0].Counts[live.Lost] = 2
	slow.Mechanisms[0].Slots[0].Counts[live.Unrenewed] = 1
	down.Rules = []presence.Rules{{Source: "store", Name: "shop", State: "stale"}, {Source: "file", Name: "x", State: RulesCurrent}}
	slow.Rules, other.Rules = down.Rules, []presence.Rules{{Source: "file", Name: "rules.yaml", State: "none"}}
	other.Service = "till"
	var found []string
	for _, trouble := range Troubles([]presence.Process{down, other, slow, {ID: "d", Unreadable: "it has format 9"}, process("e", 0, 50, 0)}) {
		found = append(found, trouble.Severity.String()+" "+trouble.What)
	}
	want := []string{
		"critical it evicts: locks end",
		"critical the redis store is down for shop on host, till on host",
		"warning lock stock has 1 failed call in the last minute",
		"warning lock stock has 1 failed renewal in the last minute",
		"warning lock stock has lost 2 leases in the last minute",
		"warning one call in a hundred of lock stock waited for up to 3s in the last minute",
		"warning rules rules.yaml (file) are none in 1 process: till on host",
		"warning rules shop (store) are stale in 2 processes: shop on host",
		"notice limiter api denied 94 % of 53 calls in the last minute",
		"notice limiter api has 2 different settings in its processes",
		"notice processes have 2 versions of Lockkeeper",
		"notice the description of process d is unreadable: it has format 9",
	}
	if !slices.Equal(found, want) {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
	if left := Troubles([]presence.Process{process("a", 0, 1, 1)}); len(left) != 0 {
		t.Errorf("%+v, though nothing is wrong", left)
	}
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"a\r\nb\x00c\u2028d": "a  b c d", "a\u202eb\u2066c": "a b c", "\xff": "\uFFFD", "": "", "\n": "", "😀": "😀",
	} {
		if got := OneLine(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// An action that cannot be carried out by anyone is not logged. One that fails is.
func TestDo(t *testing.T) {
	memory := memstore.New()
	defer memory.Close()
	st := storetest.NewFaulty(memory)
	locker, err := lock.New(st, "jobs")
	must(t, err)
	lease, err := locker.Lock(t.Context(), "k")
	must(t, err)
	valid := Action{Kind: ReleaseLock, Name: "jobs", Key: "k", Fence: lease.Fence().Number, Operator: "ada", Why: "it\nhangs"}
	for name, change := range map[string]func(*Action){
		"no reason": func(a *Action) { a.Why = " \n\u202e " }, "a long reason": func(a *Action) { a.Why = strings.Repeat("é", MaxWhy+1) },
		"no operator": func(a *Action) { a.Operator = "\n" }, "no kind": func(a *Action) { a.Kind = "" },
		"no document":        func(a *Action) { a.Kind = PushRules },
		"no resolution":      func(a *Action) { a.Kind = ResolveOperation },
		"an unknown limiter": func(a *Action) { a.Kind = ResetLimit },
	} {
		a := valid
		change(&a)
		if outcome, err := Do(t.Context(), st, a); outcome != Failed || !errors.Is(err, ErrInvalid) && !errors.Is(err, ErrUnknownHere) {
			t.Errorf("%s: %s, %v", name, outcome, err)
		}
	}
	st.BreakNext(storetest.RevokeLease, storetest.Down, 1)
	for _, want := range []Outcome{Failed, Done, Changed} {
		if outcome, err := Do(t.Context(), st, valid); outcome != want || (err != nil) != (want == Failed) {
			t.Errorf("%s, %v; want %s", outcome, err, want)
		}
	}
	for want, run := range map[Outcome]func(context.Context, *Action) (bool, error){
		Done: func(_ context.Context, a *Action) (bool, error) {
			a.Detail = "version 7"
			return true, nil
		},
		Changed: func(context.Context, *Action) (bool, error) { return false, nil },
		Failed:  func(context.Context, *Action) (bool, error) { return true, errors.New("no") },
	} {
		push := Action{Kind: PushRules, Name: "shop", Operator: "ada", Why: "more", Run: run}
		if outcome, _ := Do(t.Context(), st, push); outcome != want {
			t.Errorf("%s, want %s", outcome, want)
		}
	}
	gone := valid
	gone.Key, gone.Gone = "", KeyID("another")
	if outcome, err := Do(t.Context(), st, gone); outcome != Changed || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	st.Break(storetest.PutDocument, storetest.Down)
	if outcome, err := Do(t.Context(), st, valid); outcome != Changed || err == nil || !strings.Contains(err.Error(), "not logged") {
		t.Errorf("without a log: %s, %v", outcome, err)
	}
	st.Mend(storetest.PutDocument)
	entries, err := Log(t.Context(), st)
	must(t, err)
	var logged []string
	for _, e := range slices.Backward(entries) {
		logged = append(logged, fmt.Sprint(e.Operator, " ", e.Kind, " ", e.KeyID == KeyID("k"), " ", e.Why, " ", e.Outcome, e.Detail))
		if e.Kind == PushRules && e.KeyID != "" {
			t.Errorf("%+v", e)
		}
	}
	slices.Sort(logged) // they may have one age
	want := []string{
		"ada release_lock false it hangs changed", "ada release_lock true it hangs changed", "ada release_lock true it hangs done",
		"ada release_lock true it hangs failed", "ada push_rules false more doneversion 7", "ada push_rules false more changed",
		"ada push_rules false more failed",
	}
	slices.Sort(want)
	if !slices.Equal(logged, want) {
		t.Errorf("%q, want %q", logged, want)
	}
}

// A task that takes the place of the one that was seen, after a look at it, is not cancelled.
func TestATaskThatIsMovedBeforeItsCancel(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	queue, err := delay.New(st, "unpaid")
	must(t, err)
	put := func() {
		_, err := queue.Put(t.Context(), "k", nil, time.Hour)
		must(t, err)
	}
	put()
	seen, _, err := inspect.Task(t.Context(), st, "unpaid", "k")
	must(t, err)
	a := Action{Kind: CancelTask, Name: "unpaid", Key: "k", Version: seen.TaskID, Operator: "ada", Why: "it hangs"}
	if outcome, err := Do(t.Context(), movesTasks{st, put}, a); outcome != Changed || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	if _, err := queue.Inspect(t.Context(), "k"); err != nil {
		t.Errorf("the next task: %v", err)
	}
}

// movesTasks is a store in which a task is put just before each cancel.
type movesTasks struct {
	store.Store
	put func()
}

func (m movesTasks) CancelTask(ctx context.Context, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	m.put()
	return m.Store.CancelTask(ctx, req)
}

// A log that is full loses its oldest entries. One that cannot be read is shown as such.
func TestAFullLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // ages are as of the moments in which entries are listed
		st := memstore.New()
		defer st.Close()
		for i := range store.MaxDocuments {
			_, _, err := st.PutDocument(t.Context(), store.DocumentRequest{Space: logSpace, Name: fmt.Sprint(i), Data: []byte("{")})
			must(t, err)
		}
		time.Sleep(time.Second)
		if outcome, err := Do(t.Context(), st, Action{Kind: ReleaseLock, Name: "jobs", Key: "k", Operator: "ada", Why: "it hangs"}); outcome != Changed || err != nil {
			t.Fatalf("%s, %v", outcome, err)
		}
		entries, err := Log(t.Context(), st)
		must(t, err)
		all, err := entriesOf(t.Context(), st)
		must(t, err)
		unreadable := 0
		for _, e := range entries {
			if e.Unread != "" {
				unreadable++
			}
		}
		if len(entries) != MaxLogged || len(all) != store.MaxDocuments*3/4+1 || entries[0].Operator != "ada" || unreadable != MaxLogged-1 {
			t.Errorf("%d of %d entries, %d unreadable, the latest %+v", len(entries), len(all), unreadable, entries[0])
		}
	})
}

func TestRuleOf(t *testing.T) {
	for text, ok := range map[string]bool{
		"5/1s": true, "5/1s burst=20": true, "5/1s, 100/24h name=daily": true, "PlanFunc": false, "unlimited": false, "": false,
		"5/1s, PlanFunc": false, "5/1s within other": false, "5/1s (shadow)": true, "5/1s (shadow) within other": false,
		"5/1s, 2 overrides 0af31b7e": false, "5/1s (share=x)": false, "5/1s (other)": false, "PlanFunc (off)": false,
	} {
		if _, err := ruleOf(text); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	l, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1))
	must(t, err)
	for _, c := range []struct{ set, want tokenbucket.Enforcement }{
		{tokenbucket.Enforcement{}, tokenbucket.Enforcement{Share: 1}},
		{tokenbucket.Enforcement{Share: 0.07}, tokenbucket.Enforcement{Share: 0.07}},
		{tokenbucket.Enforcement{Mode: tokenbucket.Shadow}, tokenbucket.Enforcement{Mode: tokenbucket.Shadow}},
		{tokenbucket.Enforcement{Mode: tokenbucket.Off}, tokenbucket.Enforcement{Mode: tokenbucket.Shadow}},
	} {
		st := memstore.New()
		own, err := tokenbucket.New(st, "api", tokenbucket.PerHour(1))
		must(t, err)
		must(t, own.SetEnforcement(c.set))
		rule, err := ruleOf(inspect.Mechanisms(st)[0].Settings)
		must(t, err)
		if err := l.SetRule(rule); err != nil || l.Enforcement() != c.want {
			t.Errorf("%+v is read as %+v, %v", c.set, l.Enforcement(), err)
		}
		d, err := l.Peek(t.Context(), "k")
		must(t, err)
		looked := LimitsOf(ShownKey{}, d)
		if looked.Unenforced == l.Enforces("k") || len(looked.Limits) != 1 {
			t.Errorf("%+v is shown as %+v", c.set, looked)
		}
	}
}

// What is made for one call is not this process's own: other calls neither find it, nor end with it.
func TestMadeForOneCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		theirs, err := tokenbucket.New(st, "api", tokenbucket.PerHour(5))
		must(t, err)
		p, err := presence.Start(st)
		must(t, err)
		defer func() { must(t, p.Stop(t.Context())) }()
		synctest.Wait()
		must(t, theirs.Close()) // its process still says that it has it

		first, free, err := Limiter(t.Context(), st, "api")
		must(t, err)
		_, freeGuard, err := Guard(st, "orders")
		must(t, err)
		if own := inspect.Mechanisms(st); len(own) > 0 {
			t.Errorf("the process has %+v", own)
		}
		second, freeSecond, err := Limiter(t.Context(), st, "api")
		must(t, err)
		free()
		if _, err := second.Peek(t.Context(), "k"); err != nil || first == second {
			t.Errorf("another call, after the end of this one: %v", err)
		}
		freeSecond()
		freeGuard()
	})
}

// A limiter that this process does not have is built from the settings of others only if these agree.
func TestSettingsOf(t *testing.T) {
	one, other, elsewhere := process("a", 0, 1), process("b", 0, 1), process("c", 0, 1)
	other.Mechanisms[0].Settings = "6/1s"
	elsewhere.Mechanisms[0].Settings, elsewhere.Mechanisms[0].Store = "7/1s", 1
	elsewhere.Stores = append(elsewhere.Stores, elsewhere.Stores[0])
	for name, c := range map[string]struct {
		fleet []presence.Process
		want  []string
	}{
		"none":             {nil, nil},
		"one":              {[]presence.Process{one, one}, []string{"5/1s"}},
		"on another store": {[]presence.Process{one, elsewhere}, []string{"5/1s"}},
		"different ones":   {[]presence.Process{one, other}, []string{"5/1s", "6/1s"}},
		"elsewhere alone":  {[]presence.Process{elsewhere}, nil},
	} {
		if got := settingsOf(c.fleet, "api"); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
