package storetest_test

import (
	"context"
	"os"
	"os/exec"
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

func (s chargesDenied) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	reply, err := s.Store.TakeTokens(ctx, limiter, key, charges)
	if err == nil && !reply.Allowed {
		for i := range charges {
			charges[i].Cost = time.Second
		}
		charged, err := s.Store.TakeTokens(ctx, limiter, key, charges)
		charged.Allowed = false
		return charged, err
	}
	return reply, err
}

type oneByOne struct{ store.Store }

func (s oneByOne) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	all := store.TakeReply{Allowed: true, Debts: store.MakeDebts(len(charges))}
	for i := range charges {
		reply, err := s.Store.TakeTokens(ctx, limiter, key, charges[i:i+1])
		if err != nil {
			return reply, err
		}
		all.Allowed = all.Allowed && reply.Allowed
		all.Debts.Set(i, reply.Debts.At(0))
	}
	return all, nil
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
			if suite != "leases" {
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
