package presence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// process is the store as one process of several has it.
type process struct {
	store.Documents
	down atomic.Bool
	slow time.Duration
}

func (p *process) PutDocument(ctx context.Context, req store.DocumentRequest) (int64, bool, error) {
	time.Sleep(p.slow)
	if p.down.Load() {
		return 0, false, store.ErrUnavailable
	}
	return p.Documents.PutDocument(ctx, req)
}

func start(t *testing.T, st store.Documents, opts ...Option) *Presence {
	t.Helper()
	p, err := Start(st, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func stop(t *testing.T, p *Presence) {
	t.Helper()
	if err := p.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func fleet(t *testing.T, st store.Documents) (services []string) {
	t.Helper()
	all, err := Fleet(t.Context(), st)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		services = append(services, p.Service)
	}
	return services
}

func TestAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		limiter, err := tokenbucket.New(st, "api", tokenbucket.PerSecond(1).Burst(2))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = limiter.Close() }()
		shop := start(t, st, Service("shop"))
		dead := start(t, &process{Documents: st}, Service("dead"), Including(st))
		for range 3 {
			_, _ = limiter.Allow(t.Context(), "key")
		}
		time.Sleep(interval)
		all, err := Fleet(t.Context(), st)
		if err != nil || len(all) != 2 || all[0].Service != "dead" || all[1].Service != "shop" {
			t.Fatalf("%+v, %v", all, err)
		}
		p := all[1]
		if p.ID != shop.ID() || p.PID == 0 || p.Version == "" || p.Age >= interval ||
			len(p.Stores) != 1 || p.Stores[0].Kind != "memory" {
			t.Errorf("%+v", p)
		}
		if len(p.Mechanisms) != 1 {
			t.Fatalf("%+v", p.Mechanisms)
		}
		m := p.Mechanisms[0]
		if m.Kind != "rate_limit" || m.Name != "api" || m.Settings == "" || m.Members != 1 ||
			m.Passed != 2 || m.Denied != 1 || m.Slots != nil {
			t.Errorf("%+v", m)
		}
		if m := all[0].Mechanisms; len(m) != 1 || m[0].Store != 1 { // of the second store
			t.Errorf("%+v", m)
		}
		dead.end() // as a killed process does
		time.Sleep(lifetime - time.Millisecond - interval)
		stop(t, shop)
		if left := fleet(t, st); len(left) != 1 || left[0] != "dead" {
			t.Errorf("after a Stop there are %v", left)
		}
		time.Sleep(interval + time.Millisecond)
		if left := fleet(t, st); left != nil {
			t.Errorf("15 s after its last sign there are %v", left)
		}
	})
}

// follows is rules in a state.
type follows struct{ atomic.Value }

func following(r inspect.Rules) *follows {
	f := new(follows)
	f.Store(r)
	return f
}

func (f *follows) Inspect() inspect.Rules { return f.Load().(inspect.Rules) }

func (f *follows) InspectHistory(context.Context) ([]inspect.RulesVersion, error) { return nil, nil }

// The states of rules are those of the last 5 s, and have nothing of the documents. They take no room
// from a process that has more of them, or longer names, than are shown.
func TestRulesOfAFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		is := inspect.Rules{
			Source: "store", Name: "shop", State: "current", Since: time.Now(), Version: "7", Revision: 1 << 60, Hash: "0123456789abcdef",
			Document: []byte("secret"), Refused: []byte("secret"),
		}
		r := following(is)
		p := start(t, st, WithRules(r))
		defer stop(t, p)
		shown := func() Rules {
			t.Helper()
			time.Sleep(interval)
			fleet, err := Fleet(t.Context(), st)
			if err != nil || len(fleet) != 1 || len(fleet[0].Rules) != 1 {
				t.Fatalf("%+v, %v", fleet, err)
			}
			return fleet[0].Rules[0]
		}
		got := shown()
		if since := got.Since; since > interval || since < 0 {
			t.Errorf("since %v", since)
		}
		want := Rules{"store", "shop", "current", got.Since, "7", 1 << 60, "0123456789abcdef", 0}
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		is.State, is.Errors = "stale", make([]inspect.RulesError, 3)
		r.Store(is)
		if got := shown(); got.State != "stale" || got.Errors != 3 {
			t.Errorf("%+v", got)
		}
		if _, err := Start(&process{Documents: st}, WithRules((*follows)(nil))); err == nil {
			t.Error("nil rules are no error")
		}
		random := rand.New(rand.NewPCG(1, 2))
		noise := func() string { return fmt.Sprint(random.Perm(1000)) }
		many := Process{Stores: []Store{{Kind: "memory", Findings: []store.Finding{{Found: noise()}, {Found: noise()}, {Found: noise()}}}}}
		for range 100 {
			many.Rules = append(many.Rules, RulesOf(following(inspect.Rules{Source: noise(), Name: noise(), State: noise(), Version: noise(), Hash: noise()})))
		}
		data := encodeProcess(&many)
		if got := decodeProcess(data); len(data) > maxDocument || len(got.Rules) != maxRules || got.Rules[7].Name != many.Rules[7].Name {
			t.Errorf("%d bytes, %d rules", len(data), len(got.Rules))
		}
	})
}

// The history of every process is there 5 s after the first Watch, and adds up.
func TestWatching(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		limiter, err := tokenbucket.New(st, "api", tokenbucket.PerSecond(1).Burst(100))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			defer stop(t, start(t, &process{Documents: st}, Service(fmt.Sprint(i)), Including(st)))
		}
		for range 130 { // eleven minutes
			for range 7 {
				_, _ = limiter.Allow(t.Context(), "key")
			}
			time.Sleep(SlotLength)
		}
		histories := func() (n, calls int) {
			all, err := Watch(t.Context(), st)
			if err != nil || len(all) != 3 {
				t.Fatalf("%d processes, %v", len(all), err)
			}
			for _, p := range all {
				if slots := p.Mechanisms[0].Slots; slots != nil {
					n++
					calls = 0
					for _, s := range slots {
						calls += int(s.Counts[live.Passed] + s.Counts[live.Denied])
					}
				}
			}
			return n, calls
		}
		if n, _ := histories(); n != 0 {
			t.Errorf("%d processes have written histories that nobody asked for", n)
		}
		time.Sleep(interval)
		if n, calls := histories(); n != 3 || calls < 7*(live.Slots-1) || calls > 7*(live.Slots+1) {
			t.Errorf("after 5 s %d histories, with %d calls", n, calls)
		}
		_ = limiter.Close()
		time.Sleep(watchedFor + interval + historyLifetime)
		for d, err := range st.ListDocuments(t.Context(), historySpace) {
			t.Errorf("a history is left: %q, %v", d.Name, err)
		}
	})
}

// What a process writes is the same whatever its clock says: a clock that is wrong shifts nothing.
func TestAClockThatIsWrong(t *testing.T) {
	written := func(wrongBy time.Duration) (text string) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(wrongBy)
			st := memstore.New()
			defer func() { _ = st.Close() }()
			limiter, err := tokenbucket.New(st, "api", tokenbucket.PerSecond(1).Burst(2))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = limiter.Close() }()
			here := start(t, st, Service("shop"))
			defer stop(t, here)
			for range 3 {
				_, _ = limiter.Allow(t.Context(), "key")
			}
			time.Sleep(SlotLength + SlotLength/2)
			p := here.Process()
			if slots := p.Mechanisms[0].Slots; len(slots) != 2 || slots[0].Counts[live.Denied] != 1 {
				t.Errorf("%+v", slots)
			}
			text = fmt.Sprintf("%q %q", encodeProcess(&p), encodeHistory(&p))
		})
		return text
	}
	if right, wrong := written(0), written(5*time.Minute); right != wrong {
		t.Errorf("a process writes\n%s\nand with a clock that is five minutes ahead\n%s", right, wrong)
	}
}

func TestStartTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer func() { _ = st.Close() }()
		first, second := start(t, st, Service("first")), start(t, st, Service("second"))
		if first != second {
			t.Error("two presences on one store")
		}
		stop(t, first)
		time.Sleep(2 * lifetime)
		if all := fleet(t, st); len(all) != 1 || all[0] != "first" {
			t.Errorf("after the first Stop there are %v", all)
		}
		stop(t, second)
		third := start(t, st)
		if third == first {
			t.Error("a presence that has ended")
		}
		stop(t, third)
	})
	for _, st := range []store.Documents{nil, (*memstore.Store)(nil), struct {
		store.Documents
		_ []int
	}{}} {
		if p, err := Start(st); err == nil {
			t.Errorf("a presence on %T: %v", st, p)
		}
	}
}

// A Start during a Stop that waits for a slow store begins anew.
func TestAStartDuringAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &process{Documents: memstore.New(), slow: time.Second}
		first := start(t, st)
		synctest.Wait() // it writes
		ending := make(chan error)
		go func() { ending <- first.Stop(context.Background()) }()
		synctest.Wait()
		second := start(t, st)
		if second == first {
			t.Error("a presence that ends")
		}
		if err := <-ending; err != nil {
			t.Error(err)
		}
		time.Sleep(interval)
		if all := fleet(t, st); len(all) != 1 {
			t.Errorf("there are %v", all)
		}
		stop(t, second)
	})
}

// A store that is closed ends the presence, which leaves no goroutine.
func TestAClosedStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		var text bytes.Buffer
		p := start(t, st, WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		synctest.Wait()
		_ = st.Close()
		<-p.ended
		again := start(t, st, WithLogger(slog.New(slog.DiscardHandler)))
		if again == p {
			t.Error("a presence that has ended")
		}
		<-again.ended
	})
}

func TestAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &process{Documents: memstore.New()}
		st.down.Store(true)
		var text bytes.Buffer
		p := start(t, st, Service("shop"), WithLogger(slog.New(slog.NewTextHandler(&text, nil))))
		time.Sleep(50 * time.Second)
		synctest.Wait()
		if n := strings.Count(text.String(), "\n"); n != 1 {
			t.Errorf("%d lines in 50 s: %s", n, text.String())
		}
		st.down.Store(false)
		time.Sleep(interval)
		if all := fleet(t, st); len(all) != 1 {
			t.Errorf("after the outage there are %v", all)
		}
		stop(t, p)
	})
}

// What a process writes is bounded, and what it leaves out is counted.
func TestManyMechanisms(t *testing.T) {
	p := Process{Service: "shop", Stores: []Store{{Kind: "redis"}}}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 2_000 {
		m := Mechanism{Kind: "lock", Name: fmt.Sprint(random.Uint64()), Members: i}
		m.Settings, m.Passed = fmt.Sprint("ttl ", random.Uint64()), random.Uint64()>>1
		for range live.Slots + 1 {
			s := Slot{Waiting: random.Uint32(), Held: random.Uint32()}
			for i := range s.Took {
				s.Took[i] = uint16(random.Uint32())
			}
			m.Slots = append(m.Slots, s)
		}
		p.Mechanisms = append(p.Mechanisms, m)
	}
	for range 1_000 {
		f := store.Finding{Found: fmt.Sprint(random.Uint64()), Weakens: "everything"}
		p.Stores[0].Findings = append(p.Stores[0].Findings, f)
	}
	data, history := encodeProcess(&p), encodeHistory(&p)
	if len(data) > maxDocument || len(history) > maxHistory {
		t.Errorf("%d and %d bytes", len(data), len(history))
	}
	got := decodeProcess(data)
	if got.Unreadable != "" || got.Service != "shop" || len(got.Mechanisms)+got.More != 2_000 {
		t.Errorf("%d mechanisms and %d more: %q", len(got.Mechanisms), got.More, got.Unreadable)
	}
	p.Stores[0].Findings = nil
	p.Mechanisms = p.Mechanisms[:20]
	got = decodeProcess(encodeProcess(&p))
	if len(got.Mechanisms) != 20 || got.Mechanisms[0].Passed != p.Mechanisms[0].Passed {
		t.Errorf("%d mechanisms", len(got.Mechanisms))
	}
	p.Mechanisms = p.Mechanisms[:3]
	got.Mechanisms = got.Mechanisms[:3]
	addHistory(&got, encodeHistory(&p), time.Second)
	for i := range got.Mechanisms {
		for j, s := range got.Mechanisms[i].Slots {
			if s != p.Mechanisms[i].Slots[j] {
				t.Fatalf("slot %d of %d: %+v", j, i, s)
			}
		}
		if got.Mechanisms[i].Open != time.Second {
			t.Errorf("open since %v", got.Mechanisms[i].Open)
		}
	}
}

// A document of another version, a damaged and a huge one are unreadable, and nothing worse.
func TestUnreadableDocuments(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	locker, err := lock.New(st, "stock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	p := begin(&process{Documents: st}, config{logger: slog.Default(), others: []any{st}})
	defer func() { p.end(); <-p.ended }()
	self := p.Process()
	good, history := encodeProcess(&self), encodeHistory(&self)
	if p := decodeProcess(good); p.Unreadable != "" || len(p.Mechanisms) != 1 {
		t.Fatalf("%+v", p)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "of another version": {format + 1, 1, 2}, "no JSON": deflate([]byte("text")),
		"huge": deflate(make([]byte, maxInflated+1)), "cut": good[:len(good)/2],
		"of no store": deflate([]byte(`{"m":[{"k":"lock","n":"x","t":3}]}`)),
	} {
		if p := decodeProcess(data); p.Unreadable == "" {
			t.Errorf("%s: %+v", name, p)
		}
	}
	random := rand.New(rand.NewPCG(3, 4))
	raw, err := inflate(history)
	if err != nil {
		t.Fatal(err)
	}
	for range 500 {
		damaged := bytes.Clone(raw)
		for range 1 + random.IntN(4) {
			damaged[random.IntN(len(damaged))] = byte(random.Uint32())
		}
		addHistory(&self, deflate(damaged[:random.IntN(len(damaged))]), 0)
	}
	req := store.DocumentRequest{Space: presenceSpace, Name: "x", Data: []byte("?")}
	if _, _, err := st.PutDocument(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	all, err := Fleet(t.Context(), st)
	if err != nil || len(all) == 0 || all[0].ID != "x" || all[0].Unreadable == "" {
		t.Errorf("%+v, %v", all, err)
	}
}

// A fleet that cannot be read is an error.
func TestNoFleet(t *testing.T) {
	st := memstore.New()
	_ = st.Close()
	if _, err := Fleet(t.Context(), st); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Fleet: %v", err)
	}
	if _, err := Watch(t.Context(), st); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Watch: %v", err)
	}
}
