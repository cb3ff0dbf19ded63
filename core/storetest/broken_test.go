package storetest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// The broken stores each break one promise of the contract.
var broken = map[string]func(store.Store) store.Store{
	"charges denied requests":          func(s store.Store) store.Store { return chargesDenied{s} },
	"charges limit by limit":           func(s store.Store) store.Store { return oneByOne{s} },
	"charges key by key":               func(s store.Store) store.Store { return keyByKey{s} },
	"charges keys that are apart":      func(s store.Store) store.Store { return manySlots{s, true} },
	"charges no keys together":         func(s store.Store) store.Store { return manySlots{s, false} },
	"charges the last key for all":     changesTake(func(r, last *store.TokenRequest) { *r = *last }),
	"forgets the rate of a bucket":     changesTake(func(r, _ *store.TokenRequest) { setCharges(r, func(c *store.Charge) { c.Interval = 1 }) }),
	"fills buckets at another rate":    changesTake(func(r, _ *store.TokenRequest) { setCharges(r, func(c *store.Charge) { c.Fresh = true }) }),
	"never fills a bucket":             changesTake(func(r, _ *store.TokenRequest) { setCharges(r, func(c *store.Charge) { c.Fresh = false }) }),
	"takes one of at most some tokens": changesTake(func(r, _ *store.TokenRequest) { r.AtMost = min(r.AtMost, 1) }),
	"takes a calendar for a rate": changesTake(func(r, _ *store.TokenRequest) {
		setCharges(r, func(c *store.Charge) { c.Period = nil })
	}),
	"goes by the clock of the client": changesTake(func(r, _ *store.TokenRequest) {
		setPeriods(r, func(p *store.Period) { p.Begin = p.Begin.Add(-time.Since(p.Begin)).Add(-time.Hour) })
	}),
	"has a bucket for each period of a client": changesTake(func(r, _ *store.TokenRequest) {
		setCharges(r, func(c *store.Charge) {
			if c.Period != nil {
				c.Bucket += c.Period.End.Truncate(time.Hour).String()
			}
		})
	}),
	"settles a calendar at a rate":    changesSettled(func(c *store.Charge) { c.Period = nil }),
	"changes the rate by a look":      func(s store.Store) store.Store { return looksChange{s} },
	"refunds more than was used":      func(s store.Store) store.Store { return refundsAll{s, new(sync.Map)} },
	"refunds nothing":                 changesSettled(func(c *store.Charge) { c.Cost = max(c.Cost, 0) }),
	"settles up to the capacity":      changesSettled(func(c *store.Charge) { c.Overdraft = 0 }),
	"settles without a bound":         changesSettled(func(c *store.Charge) { c.Overdraft += c.Capacity }),
	"settles at the rate of the take": changesSettled(func(c *store.Charge) { c.Interval = time.Hour }),
	"settles all or none":             func(s store.Store) store.Store { return settlesAll{s} },
	"holds one limit of a key":        changesHold(func(r *store.TokenRequest, _ *time.Duration) { r.Charges = r.Charges[:1] }),
	"holds all limits of a key": changesHold(func(r *store.TokenRequest, _ *time.Duration) {
		r.Charges = append(r.Charges, store.Charge{Bucket: "second"})
	}),
	"holds for twice as long":          changesHold(func(_ *store.TokenRequest, d *time.Duration) { *d *= 2 }),
	"shortens holds":                   func(s store.Store) store.Store { return shortens{s} },
	"does not settle what is held":     func(s store.Store) store.Store { return settlesNoHeld{s} },
	"denies what it does not charge":   func(s store.Store) store.Store { return deniesAllHeld{s} },
	"settles for any owner":            func(s store.Store) store.Store { return settlesAnyOwner{s, new(sync.Map)} },
	"never takes over":                 changesBegin(func(req *store.BeginRequest) { req.Rerun = true }),
	"begins what was abandoned":        func(s store.Store) store.Store { return forgetsAbandons{s} },
	"truncates results":                changesSettle(func(req *store.SettleRequest) { req.Data = req.Data[:min(len(req.Data), 1000)] }),
	"does not bound a scope":           changesBegin(func(req *store.BeginRequest) { req.MaxRecords = 0 }),
	"does not bound results":           changesSettle(func(req *store.SettleRequest) { req.MaxBytes = 0 }),
	"has one scope for all":            func(s store.Store) store.Store { return oneScope{s} },
	"lets a late mark count":           func(s store.Store) store.Store { return lastMarkCounts{s, new(atomic.Int64)} },
	"refuses known operations if full": func(s store.Store) store.Store { return looksAtBoundFirst{s, new(sync.Map)} },

	"resolves any version":                 func(s store.Store) store.Store { return resolvesAnyVersion{s} },
	"gives no steps to the next attempt":   func(s store.Store) store.Store { return losesSteps{s} },
	"records steps of former owners":       func(s store.Store) store.Store { return recordsLateSteps{s, new(sync.Map)} },
	"awaits the end of an attempt forever": func(s store.Store) store.Store { return awaitsForever{s} },
	"lets two find out an outcome":         func(s store.Store) store.Store { return twoReconcile{s} },
	"lists operations without effects":     func(s store.Store) store.Store { return listsAll{s} },

	"counts a participant twice":          func(s store.Store) store.Store { return countsTwice{s, new(atomic.Int64)} },
	"wakes one waiter of a latch":         func(s store.Store) store.Store { return wakesOne{s, make(chan struct{}, 1)} },
	"keeps a latch from its first change": func(s store.Store) store.Store { return latchNeverExtended{s, new(sync.Map)} },
	"opens a latch at the first count":    func(s store.Store) store.Store { return oneCount{s, new(sync.Map)} },
}

// changes is a store that changes requests.
type changes struct {
	store.Store
	begin  func(*store.BeginRequest)
	settle func(*store.SettleRequest)
}

func changesBegin(f func(*store.BeginRequest)) func(store.Store) store.Store {
	return func(s store.Store) store.Store { return changes{Store: s, begin: f} }
}

func changesSettle(f func(*store.SettleRequest)) func(store.Store) store.Store {
	return func(s store.Store) store.Store { return changes{Store: s, settle: f} }
}

func (s changes) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	if s.begin != nil {
		s.begin(&req)
	}
	return s.Store.BeginOperation(ctx, req)
}

func (s changes) SettleOperation(ctx context.Context, req store.SettleRequest) (bool, error) {
	if s.settle != nil {
		s.settle(&req)
	}
	return s.Store.SettleOperation(ctx, req)
}

type chargesDenied struct{ store.Store }

func (s chargesDenied) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	reply, err := s.Store.TakeTokens(ctx, r, more...)
	if err == nil && !reply.Allowed {
		for i := range r.Charges {
			r.Charges[i].Cost = time.Second
		}
		charged, err := s.Store.TakeTokens(ctx, r)
		charged.Allowed = false
		return charged, err
	}
	return reply, err
}

type oneByOne struct{ store.Store }

func (s oneByOne) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	charges := r.Charges
	if len(more) > 0 || len(charges) < 2 {
		return s.Store.TakeTokens(ctx, r, more...)
	}
	all := store.TakeReply{Allowed: true, Debts: store.MakeDebts(len(charges))}
	for i := range charges {
		r.Charges = charges[i : i+1]
		reply, err := s.Store.TakeTokens(ctx, r)
		if err != nil {
			return reply, err
		}
		all.Allowed = all.Allowed && reply.Allowed
		all.Debts.Set(i, reply.Debts.At(0))
	}
	return all, nil
}

type keyByKey struct{ store.Store }

func (s keyByKey) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	all := store.TakeReply{Allowed: true, Taken: r.AtMost}
	var debts []time.Duration
	for _, r := range append([]store.TokenRequest{r}, more...) {
		reply, err := s.Store.TakeTokens(ctx, r)
		if err != nil {
			return reply, err
		}
		all.Allowed, all.Held, all.Taken = all.Allowed && reply.Allowed, max(all.Held, reply.Held), reply.Taken
		for i := range r.Charges {
			debts = append(debts, reply.Debts.At(i))
		}
	}
	all.Debts = debtsOf(debts)
	return all, nil
}

// manySlots cannot charge several keys in one step. It charges the first one, or cannot even do so
// if all have the same home.
type manySlots struct {
	store.Store
	first bool
}

func (s manySlots) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	apart := func(q store.TokenRequest) bool { return q.InHome() != r.InHome() }
	switch {
	case s.first && slices.ContainsFunc(more, apart):
		_, err := s.Store.TakeTokens(ctx, r)
		return store.TakeReply{}, errors.Join(store.ErrManySlots, err)
	case !s.first && len(more) > 0:
		return store.TakeReply{}, store.ErrManySlots
	}
	return s.Store.TakeTokens(ctx, r, more...)
}

// charges is a store that changes requests about tokens.
type charges struct {
	store.Store
	take   func(r, last *store.TokenRequest)
	settle func(*store.Charge)
	hold   func(*store.TokenRequest, *time.Duration)
}

func changesTake(f func(r, last *store.TokenRequest)) func(store.Store) store.Store {
	return func(s store.Store) store.Store { return charges{Store: s, take: f} }
}

func changesSettled(f func(*store.Charge)) func(store.Store) store.Store {
	return func(s store.Store) store.Store { return charges{Store: s, settle: f} }
}

func changesHold(f func(*store.TokenRequest, *time.Duration)) func(store.Store) store.Store {
	return func(s store.Store) store.Store { return charges{Store: s, hold: f} }
}

// setCharges changes copies of charges, which calls share.
func setCharges(r *store.TokenRequest, f func(*store.Charge)) {
	r.Charges = slices.Clone(r.Charges)
	for i := range r.Charges {
		f(&r.Charges[i])
	}
}

// setPeriods changes copies of periods.
func setPeriods(r *store.TokenRequest, f func(*store.Period)) {
	setCharges(r, func(c *store.Charge) {
		if c.Period != nil {
			p := *c.Period
			f(&p)
			c.Period = &p
		}
	})
}

func (s charges) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	if s.take == nil {
		return s.Store.TakeTokens(ctx, r, more...)
	}
	more = slices.Clone(more)
	last := r
	if len(more) > 0 {
		last = more[len(more)-1]
	}
	s.take(&r, &last)
	for i := range more {
		s.take(&more[i], &last)
	}
	return s.Store.TakeTokens(ctx, r, more...)
}

func (s charges) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	if s.settle != nil {
		setCharges(&r, s.settle)
	}
	return s.Store.SettleTokens(ctx, r)
}

func (s charges) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	if s.hold != nil {
		r.Charges = slices.Clone(r.Charges)
		s.hold(&r, &d)
	}
	return s.Store.HoldTokens(ctx, r, d)
}

type looksChange struct{ store.Store }

func (s looksChange) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	touch := r
	setCharges(&touch, func(c *store.Charge) { c.Cost = 1 })
	_, _ = s.SettleTokens(ctx, touch)
	setCharges(&touch, func(c *store.Charge) { c.Cost = -1 })
	_, _ = s.SettleTokens(ctx, touch)
	return s.Store.TakeTokens(ctx, r, more...)
}

// refundsAll remembers by how much a settlement has been less than was used.
type refundsAll struct {
	store.Store
	credits *sync.Map // of a limiter and a key
}

func (s refundsAll) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	look := r
	setCharges(&look, func(c *store.Charge) { c.Cost = 0 })
	before, err := s.Store.TakeTokens(ctx, look)
	if err == nil && len(r.Charges) == 1 {
		s.credits.Store(r.Limiter+r.Key, max(-before.Debts.At(0)-r.Charges[0].Cost, 0))
	}
	return s.Store.SettleTokens(ctx, r)
}

func (s refundsAll) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	if credit, ok := s.credits.Load(r.Limiter + r.Key); ok {
		setCharges(&r, func(c *store.Charge) { c.Cost = max(c.Cost-credit.(time.Duration), 0) })
	}
	return s.Store.TakeTokens(ctx, r, more...)
}

type settlesAll struct{ store.Store }

func (s settlesAll) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	look := r
	setCharges(&look, func(c *store.Charge) { c.Cost = 0 })
	reply, err := s.TakeTokens(ctx, look)
	for i, c := range r.Charges {
		if reply.Debts.At(i)+c.Cost > c.Capacity+c.Overdraft {
			reply.Allowed = false
		}
	}
	if err != nil || !reply.Allowed && len(r.Charges) > 1 {
		return reply, err
	}
	return s.Store.SettleTokens(ctx, r)
}

type shortens struct{ store.Store }

func (s shortens) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	for _, c := range r.Charges {
		one := r
		one.Charges = []store.Charge{c}
		one.Charges[0].Cost = 0
		debt, err := s.TakeTokens(ctx, one)
		if err != nil {
			return err
		}
		if err := s.ResetTokens(ctx, one); err != nil {
			return err
		}
		one.Charges[0].Cost = debt.Debts.At(0)
		if _, err := s.SettleTokens(ctx, one); err != nil {
			return err
		}
	}
	return s.Store.HoldTokens(ctx, r, d)
}

type settlesNoHeld struct{ store.Store }

func (s settlesNoHeld) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	look := r
	setCharges(&look, func(c *store.Charge) { c.Cost = 0 })
	if reply, err := s.TakeTokens(ctx, look); err != nil || reply.Held > 0 {
		return reply, err
	}
	return s.Store.SettleTokens(ctx, r)
}

type deniesAllHeld struct{ store.Store }

func (s deniesAllHeld) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	look, looks := r, slices.Clone(more)
	setCharges(&look, func(c *store.Charge) { c.Cost = 0 })
	for i := range looks {
		setCharges(&looks[i], func(c *store.Charge) { c.Cost = 0 })
	}
	reply, err := s.Store.TakeTokens(ctx, look, looks...)
	if err != nil || reply.Held > 0 && slices.ContainsFunc(r.Charges, func(c store.Charge) bool { return c.Cost > 0 }) {
		reply.Allowed = false
		return reply, err
	}
	return s.Store.TakeTokens(ctx, r, more...)
}

type settlesAnyOwner struct {
	store.Store
	owners *sync.Map
}

func (s settlesAnyOwner) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	reply, err := s.Store.BeginOperation(ctx, req)
	if err == nil && reply.Outcome == store.Started {
		s.owners.Store(req.ID, req.Owner)
	}
	return reply, err
}

func (s settlesAnyOwner) SettleOperation(ctx context.Context, req store.SettleRequest) (bool, error) {
	if owner, ok := s.owners.Load(req.ID); ok {
		req.Owner = owner.(string)
	}
	return s.Store.SettleOperation(ctx, req)
}

type forgetsAbandons struct{ store.Store }

func (s forgetsAbandons) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	reply, err := s.Store.BeginOperation(ctx, req)
	if err == nil && reply.Outcome == store.Refused {
		req.Owner = req.Owner[1:] + "x"
		return s.Store.BeginOperation(ctx, req)
	}
	return reply, err
}

type oneScope struct{ store.Store }

func (s oneScope) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	req.Scope = "one"
	return s.Store.BeginOperation(ctx, req)
}

func (s oneScope) SettleOperation(ctx context.Context, req store.SettleRequest) (bool, error) {
	req.Scope = "one"
	return s.Store.SettleOperation(ctx, req)
}

func (s oneScope) AbandonOperation(ctx context.Context, ref store.AttemptRef) (bool, error) {
	ref.Scope = "one"
	return s.Store.AbandonOperation(ctx, ref)
}

func (s oneScope) MarkOperation(ctx context.Context, req store.MarkRequest) (bool, error) {
	req.Scope = "one"
	return s.Store.MarkOperation(ctx, req)
}

func (s oneScope) RenewOperations(ctx context.Context, reqs []store.RenewRequest) ([]bool, error) {
	for i := range reqs {
		reqs[i].Scope = "one"
	}
	return s.Store.RenewOperations(ctx, reqs)
}

type lastMarkCounts struct {
	store.Store
	marks *atomic.Int64
}

func (s lastMarkCounts) MarkOperation(ctx context.Context, req store.MarkRequest) (bool, error) {
	req.Seq = int(s.marks.Add(1))
	return s.Store.MarkOperation(ctx, req)
}

type looksAtBoundFirst struct {
	store.Store
	full *sync.Map
}

func (s looksAtBoundFirst) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	if reply, ok := s.full.Load(req.Scope); ok && req.Scope != "" {
		return reply.(store.BeginReply), nil
	}
	reply, err := s.Store.BeginOperation(ctx, req)
	if err == nil && reply.Outcome == store.ScopeFull {
		s.full.Store(req.Scope, reply)
	}
	return reply, err
}

type resolvesAnyVersion struct{ store.Store }

func (s resolvesAnyVersion) ResolveOperation(ctx context.Context, req store.ResolveRequest) (store.ResolveOutcome, error) {
	if record, found, err := s.InspectOperation(ctx, req.OperationRef); err == nil && found && req.Version != "" {
		req.Version = record.Version
	}
	return s.Store.ResolveOperation(ctx, req)
}

type losesSteps struct{ store.Store }

func (s losesSteps) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	reply, err := s.Store.BeginOperation(ctx, req)
	reply.Steps = nil
	return reply, err
}

type recordsLateSteps struct {
	store.Store
	owners *sync.Map
}

func (s recordsLateSteps) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	reply, err := s.Store.BeginOperation(ctx, req)
	if err == nil && reply.Outcome == store.Started {
		s.owners.Store(req.ID, req.Owner)
	}
	return reply, err
}

func (s recordsLateSteps) RecordStep(ctx context.Context, req store.StepRequest) (bool, error) {
	if owner, ok := s.owners.Load(req.ID); ok {
		req.Owner = owner.(string)
	}
	return s.Store.RecordStep(ctx, req)
}

type awaitsForever struct{ store.Store }

func (s awaitsForever) AwaitOperation(ctx context.Context, ref store.OperationRef) error {
	if record, found, err := s.InspectOperation(ctx, ref); err != nil || !found || record.Lease == 0 {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

type twoReconcile struct{ store.Store }

func (s twoReconcile) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	reply, err := s.Store.BeginOperation(ctx, req)
	if err == nil && reply.Outcome == store.Busy && req.Reconcile {
		reply.Outcome = store.ToReconcile
	}
	return reply, err
}

type listsAll struct{ store.Store }

func (s listsAll) InspectOperation(ctx context.Context, ref store.OperationRef) (store.OperationRecord, bool, error) {
	record, found, err := s.Store.InspectOperation(ctx, ref)
	if record.Effects == store.NoEffects {
		record.Effects = store.EffectsInSteps
	}
	return record, found, err
}

type countsTwice struct {
	store.Store
	n *atomic.Int64
}

func (s countsTwice) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	return s.Store.CountDownLatch(ctx, req, participant+string(rune('a'+s.n.Add(1)%26)))
}

type wakesOne struct {
	store.Store
	awake chan struct{}
}

func (s wakesOne) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	if err := s.Store.AwaitLatch(ctx, req); err != nil {
		return err
	}
	select {
	case s.awake <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type latchNeverExtended struct {
	store.Store
	began *sync.Map // by name
}

func (s latchNeverExtended) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	if began, ok := s.began.Load(req.Name); ok && time.Since(began.(time.Time)) > req.TTL {
		return 0, nil
	}
	return s.Store.InspectLatch(ctx, req)
}

func (s latchNeverExtended) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	s.began.LoadOrStore(req.Name, time.Now())
	return s.Store.CountDownLatch(ctx, req, participant)
}

type oneCount struct {
	store.Store
	counts *sync.Map // by name
}

func (s oneCount) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	first, _ := s.counts.LoadOrStore(req.Name, req.Count)
	req.Count = first.(int)
	return s.Store.AwaitLatch(ctx, req)
}

// which names the broken store that the process of TestSuitesFindBrokenStores runs the suites on.
const which = "STORETEST_BROKEN"

func TestSuiteOnABrokenStore(t *testing.T) {
	wrap, ok := broken[os.Getenv(which)]
	if !ok {
		t.Skip("runs as a process of TestSuitesFindBrokenStores")
	}
	storetest.All(t, func(t *testing.T, test func(*testing.T, storetest.Harness[store.Store])) {
		synctest.Test(t, func(t *testing.T) {
			test(t, storetest.Harness[store.Store]{Store: wrap(memstore.New()), Advance: time.Sleep})
		})
	})
}

// A suite that finds nothing wrong with a broken store proves nothing.
func TestSuitesFindBrokenStores(t *testing.T) {
	for name := range broken {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			suite, _, _ := strings.Cut(name, ": ") // or the name of none: then all of them
			if suite != "leases" && suite != "delays" && suite != "documents" {
				suite = ""
			}
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSuiteOnABrokenStore$/"+suite)
			cmd.Env = append(os.Environ(), which+"="+name)
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL") {
				t.Errorf("the suites passed a store that %s: %v\n%s", name, err, out)
			}
		})
	}
}
