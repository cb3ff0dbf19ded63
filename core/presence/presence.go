// Package presence shows the processes of a fleet to each other: what each of them is, which
// mechanisms and stores it has, and what they do now.
//
// A process that calls [Start] keeps one document of at most 8 KiB in a store, which it writes every
// 5 s, and which ends 15 s after the last time. [Fleet] reads the documents of all processes.
// A call of [Watch] has each process also write its history every 2 s, for 15 s: the results of its
// mechanisms in the last ten minutes, and the keys that its limiters denied most, as hashes.
//
// Nothing here decides anything: a mechanism works the same without it.
package presence

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

const (
	// interval is the time between two writes of a process's document, which lasts for lifetime.
	interval, lifetime = 5 * time.Second, 15 * time.Second
	// watchedInterval is the time between two writes of the history, which lasts for
	// historyLifetime. A call of Watch has it written for watchedFor.
	watchedInterval, historyLifetime, watchedFor = 2 * time.Second, 10 * time.Second, 15 * time.Second
	// checkInterval is the time between two checks of the stores.
	checkInterval = 5 * time.Minute
	// slowest bounds one write, so that a store that does not reply does not stop the counters.
	slowest = 2 * time.Second
)

// Option configures a Presence.
type Option func(*config)

type config struct {
	service  string
	others   []any
	rules    []inspect.RulesInspector
	showKeys bool
	logger   *slog.Logger
}

// Service sets the name of the service, which several processes have in common: the name of the
// program by default. It is cut after 128 bytes.
func Service(name string) Option { return func(c *config) { c.service = name } }

// Including also shows the mechanisms on other stores of this process.
func Including(stores ...any) Option {
	return func(c *config) { c.others = append(c.others, stores...) }
}

// WithRules also shows which documents with rules this process follows, and whether they are in force:
// each is a *rules.Rules of package core/rules. Their texts are not shown. At most 8 are.
func WithRules(rules ...inspect.RulesInspector) Option {
	return func(c *config) { c.rules = append(c.rules, rules...) }
}

// ShowKeys shows the denied keys themselves instead of their hashes, to all who read the store or a
// page of the fleet: user IDs, addresses, or whatever the application limits by.
func ShowKeys() Option { return func(c *config) { c.showKeys = true } }

// WithLogger sets the logger for a store that does not take the documents: slog.Default() by
// default.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = cmp.Or(l, c.logger) } }

// Presence is a process's own part of the fleet.
type Presence struct {
	config
	store   store.Documents
	stores  []any
	self    Process // what does not change
	began   time.Time
	unwatch []func()
	failure *telemetry.Repeated
	end     context.CancelFunc
	ended   chan struct{}

	starts int // guarded by presences.mu

	mu       sync.Mutex
	findings map[int][]store.Finding // by the index of the store
}

// presences has the presence of each store of this process.
var presences = struct {
	mu sync.Mutex
	of map[store.Documents]*Presence
}{of: make(map[store.Documents]*Presence)}

// Start shows this process to others that use the store, until Stop, or until the store is closed. A
// second call for the same store returns the same Presence, with the options of the first, which
// then ends with the second Stop. Start sends nothing itself: a store that does not reply is logged,
// and tried again.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// It returns an error if the store is nil or cannot be compared, and for nil rules.
func Start(st store.Documents, opts ...Option) (*Presence, error) {
	if naming.IsNil(st) {
		return nil, errors.New("presence: Start: nil store")
	}
	if !reflect.TypeOf(st).Comparable() {
		return nil, errors.New("presence: Start: a store that cannot be compared; use a pointer")
	}
	presences.mu.Lock()
	defer presences.mu.Unlock()
	p := presences.of[st]
	if p == nil {
		c := config{service: filepath.Base(os.Args[0]), logger: slog.Default()}
		option.Apply(&c, opts)
		for _, r := range c.rules {
			if naming.IsNil(r) {
				return nil, errors.New("presence: WithRules: nil rules")
			}
		}
		p = begin(st, c)
		presences.of[st] = p
	}
	p.starts++
	return p, nil
}

func begin(st store.Documents, c config) *Presence {
	host, _ := os.Hostname() // it has no other use than to be read
	p := &Presence{
		config: c, store: st, began: time.Now(), ended: make(chan struct{}), findings: make(map[int][]store.Finding),
		self: Process{
			ID: naming.NewID(), Service: cut(c.service), Host: cut(host), PID: os.Getpid(),
			Version: core.Version, Go: runtime.Version(),
		},
		failure: telemetry.NewRepeated(c.logger, "lockkeeper: the presence of this process cannot be written"),
	}
	p.stores = append([]any{st}, c.others...)
	for _, s := range p.stores {
		p.unwatch = append(p.unwatch, namesake.Watch(s))
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.end = cancel
	go p.run(ctx)
	return p
}

// longest is the largest length of a service's and a host's name, in bytes.
const longest = 128

func cut(text string) string { return strings.ToValidUTF8(text[:min(len(text), longest)], "") }

// Stop ends what Start has begun, and removes the process's documents. It returns the store's error
// if they are left; then they end within 15 s.
func (p *Presence) Stop(ctx context.Context) error {
	presences.mu.Lock()
	if p.starts--; p.starts > 0 {
		presences.mu.Unlock()
		return nil
	}
	p.unlist() // a Start from now on begins anew
	presences.mu.Unlock()
	p.end()
	select {
	case <-p.ended:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	_, err := p.store.RemoveDocument(ctx, presenceSpace, p.self.ID, store.AnyVersion)
	_, historyErr := p.store.RemoveDocument(ctx, historySpace, p.self.ID, store.AnyVersion)
	return errors.Join(err, historyErr)
}

// run writes the documents until ctx ends, or the store is closed.
func (p *Presence) run(ctx context.Context) {
	defer close(p.ended)
	defer p.forget()
	var checks sync.WaitGroup
	defer checks.Wait()
	var written, checked time.Time
	watched := false
	for ctx.Err() == nil {
		if now := time.Now(); checked.IsZero() || now.Sub(checked) >= checkInterval {
			checked = now
			checks.Wait() // the last ones have ended long ago
			checks.Go(func() { p.check(ctx) })
		}
		self := p.describe(false)
		var err error
		if now := time.Now(); written.IsZero() || !watched || now.Sub(written) >= interval-watchedInterval/2 {
			written = now
			err = p.put(ctx, presenceSpace, encodeProcess(&self), lifetime)
		}
		if err == nil {
			watched, err = p.isWatched(ctx)
		}
		if err == nil && watched {
			self = p.Process()
			err = p.put(ctx, historySpace, encodeHistory(&self), historyLifetime)
		}
		if errors.Is(err, store.ErrClosed) || errors.Is(err, store.ErrNotSupported) {
			p.failure.Found(ctx, "error.type", telemetry.ErrorType(err))
			return
		}
		if err != nil && ctx.Err() == nil {
			p.failure.Found(ctx, "error.type", telemetry.ErrorType(err))
		}
		pause := interval - interval/10
		if watched {
			pause = watchedInterval
		}
		backoff.Sleep(ctx, pause+rand.N(pause/10)) //nolint:gosec // spreads processes; no secret
	}
}

// forget ends the counters, and has the next Start begin anew.
func (p *Presence) forget() {
	for _, unwatch := range p.unwatch {
		unwatch()
	}
	presences.mu.Lock()
	defer presences.mu.Unlock()
	p.unlist()
}

// unlist has the next Start begin anew. The caller holds presences.mu.
func (p *Presence) unlist() {
	if presences.of[p.store] == p {
		delete(presences.of, p.store)
	}
}

func (p *Presence) put(ctx context.Context, space string, data []byte, ttl time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	_, _, err := p.store.PutDocument(ctx, store.DocumentRequest{Space: space, Name: p.self.ID, Data: data, TTL: ttl})
	return err
}

func (p *Presence) isWatched(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, slowest)
	defer cancel()
	_, watched, err := p.store.GetDocument(ctx, watchSpace, watchName)
	return watched, err
}

// check looks for what weakens the stores. A check that fails leaves what was found before.
func (p *Presence) check(ctx context.Context) {
	for i, st := range p.stores {
		able, err := store.As[store.Checker](st)
		if err != nil {
			continue
		}
		checking, cancel := context.WithTimeout(ctx, slowest)
		found, err := able.Check(checking)
		cancel()
		if err == nil {
			p.mu.Lock()
			p.findings[i] = found
			p.mu.Unlock()
		}
	}
}

// Process returns what this process says of itself, with its history, as of now.
func (p *Presence) Process() Process { return p.describe(true) }

// describe is Process, without the denied keys if they are not asked for: each of them is hashed.
func (p *Presence) describe(deniedKeys bool) Process {
	self := p.self
	self.Up = time.Since(p.began)
	for _, r := range p.rules {
		self.Rules = append(self.Rules, RulesOf(r))
	}
	for i, st := range p.stores {
		p.mu.Lock()
		s := Store{Kind: kindOf(st), Findings: p.findings[i]}
		p.mu.Unlock()
		if server, ok := namesake.ServerOf(st); ok {
			s.Down = server.Down
			if r, ok := server.Calls.Read(); ok {
				s.Calls = activityOf(r)
			}
		}
		self.Stores = append(self.Stores, s)
		for _, g := range namesake.Members(st) {
			m := Mechanism{Kind: g.Kind, Name: g.Name, Store: i, Settings: g.Settings, Members: g.Members}
			if r, ok := g.Counter.Read(); ok {
				m.Activity = activityOf(r)
			}
			if deniedKeys {
				m.DeniedKeys = p.deniedKeys(g.Counter)
			}
			self.Mechanisms = append(self.Mechanisms, m)
		}
	}
	slices.SortFunc(self.Mechanisms, func(a, b Mechanism) int {
		return cmp.Or(
			cmp.Compare(b.Calls(), a.Calls()),
			cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Store, b.Store),
		)
	})
	return self
}

func (p *Presence) deniedKeys(of *live.Counter) []DeniedKey {
	var denied []DeniedKey
	for _, k := range of.DeniedKeys() {
		if !p.showKeys {
			k.Key = KeyHash(k.Key)
		}
		denied = append(denied, DeniedKey(k))
	}
	return denied
}

func activityOf(r live.Reading) Activity {
	return Activity{
		Passed: r.Totals[live.Passed], Denied: r.Totals[live.Denied],
		Failed: r.Totals[live.Failed], Other: r.Totals[live.Other],
		Waiting: r.Waiting, Held: r.Held, Open: r.Open, Slots: r.Slots,
	}
}

// ID identifies the process in the fleet.
func (p *Presence) ID() string { return p.self.ID }

// Watch is Fleet, with what the mechanisms of each process did in the last ten minutes. It asks the
// processes to write that for the next 15 s. So the first call returns the history of processes
// that others watch, and one after 5 s that of all.
func Watch(ctx context.Context, st store.Documents) ([]Process, error) {
	req := store.DocumentRequest{Space: watchSpace, Name: watchName, Data: []byte{'1'}, TTL: watchedFor}
	if _, _, err := st.PutDocument(ctx, req); err != nil {
		return nil, err
	}
	fleet, err := Fleet(ctx, st)
	if err != nil {
		return nil, err
	}
	histories := make(map[string]store.Document)
	for d, err := range st.ListDocuments(ctx, historySpace) {
		if err != nil {
			return nil, err
		}
		histories[d.Name] = d
	}
	for i := range fleet {
		if d, ok := histories[fleet[i].ID]; ok && fleet[i].Unreadable == "" {
			addHistory(&fleet[i], d.Data, d.Age)
		}
	}
	return fleet, nil
}

// Fleet returns the processes that have written to the store within the last 15 s, by service, host
// and process ID. A document that cannot be read is a process that has only an ID, and says why.
func Fleet(ctx context.Context, st store.Documents) ([]Process, error) {
	var fleet []Process
	for d, err := range st.ListDocuments(ctx, presenceSpace) {
		if err != nil {
			return nil, err
		}
		p := decodeProcess(d.Data)
		p.ID, p.Age = d.Name, d.Age
		fleet = append(fleet, p)
	}
	slices.SortFunc(fleet, func(a, b Process) int {
		return cmp.Or(
			cmp.Compare(a.Service, b.Service), cmp.Compare(a.Host, b.Host),
			cmp.Compare(a.PID, b.PID), cmp.Compare(a.ID, b.ID),
		)
	})
	return fleet, nil
}
