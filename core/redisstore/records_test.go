package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func (o op) inspect(t testing.TB, s *redisstore.Store) store.OperationRecord {
	t.Helper()
	record, found, err := s.InspectOperation(ctx(), o.ref().OperationRef)
	if err != nil || !found {
		t.Fatalf("inspect: found is %v, %v", found, err)
	}
	return record
}

func (o op) step(s *redisstore.Store) (bool, error) {
	return s.RecordStep(ctx(), store.StepRequest{AttemptRef: o.ref(), Step: store.Step{Name: "charge", Data: []byte("42")}})
}

func (o op) inSteps(s *redisstore.Store) (bool, error) {
	return s.MarkOperation(ctx(), store.MarkRequest{AttemptRef: o.ref(), Effects: store.EffectsInSteps, Seq: 1})
}

func (o op) unknown(s *redisstore.Store) (bool, error) {
	return s.SettleOperation(ctx(), store.SettleRequest{
		AttemptRef: o.ref(), Fingerprint: o.fingerprint, Number: 1, State: store.Unknown, Retention: time.Hour,
	})
}

// reconcile begins to find out an unknown outcome.
func (o op) reconcile(s *redisstore.Store) (bool, error) {
	reply, err := s.BeginOperation(ctx(), store.BeginRequest{
		AttemptRef: o.ref(), Fingerprint: o.fingerprint, Lease: 30 * time.Second, Retention: time.Hour, Reconcile: true,
	})
	return reply.Outcome == store.ToReconcile, err
}

func (o op) resolve(s *redisstore.Store, version string) (bool, error) {
	outcome, err := s.ResolveOperation(ctx(), store.ResolveRequest{
		OperationRef: o.ref().OperationRef, Owner: o.owner, Version: version, State: store.Completed, Data: []byte("found"), Retention: time.Hour,
	})
	return outcome == store.Resolved, err
}

// awaits returns a channel that receives what AwaitOperation returns, once the server knows of it.
func (o op) awaits(t testing.TB, s *redisstore.Store, server *redistest.Server) <-chan error {
	t.Helper()
	done := make(chan error, 1)
	c, cancel := context.WithTimeout(ctx(), 20*time.Second)
	t.Cleanup(cancel)
	go func() { done <- s.AwaitOperation(c, o.ref().OperationRef) }()
	direct := server.Client()
	eventually(t, 5*time.Second, "the server knows who waits", func() bool { return len(direct.Keys(ctx(), "*}w:*").Val()) == 1 })
	return done
}

// Every key of an operation expires, whatever was done last, and also if the counts of its scope are gone.
func TestKeysOfAnOperationExpire(t *testing.T) {
	testpace.Parallel(t)
	for name, lost := range map[string]bool{"": false, "with counts": false, "without counts": true} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			direct, s := server.Client(), newStore(t, server.Client())
			first := newOp("k")
			if name != "" {
				first = first.in("alice")
			}
			second := first.by("second")
			check := func(step string, owned bool, err error) {
				t.Helper()
				wantOwned(t, step, owned, err)
				if keys := lasting(t, direct); len(keys) > 0 {
					t.Errorf("after %s, %q do not expire", step, keys)
				}
				if lost {
					must(t, direct.Del(ctx(), "lk:g:{"+first.scope+"}").Err())
				}
			}
			first.started(t, s)
			waiting := first.awaits(t, s, server)
			check("await", true, nil)
			for step, f := range []func(*redisstore.Store) (bool, error){first.inSteps, first.step, first.renew, first.unknown, second.reconcile} {
				owned, err := f(s)
				check(string(rune('0'+step)), owned, err)
			}
			must(t, <-waiting)
			waiting = second.awaits(t, s, server)
			owned, err := second.resolve(s, "")
			check("resolve", owned, err)
			must(t, <-waiting)
			if keys := direct.Keys(ctx(), "*}w:*").Val(); len(keys) > 0 {
				t.Errorf("%q are left", keys)
			}
		})
	}
}

// A full server refuses steps and results, and nothing that ends an attempt; who waits is not told, and
// checks.
func TestOperationsOfAFullServer(t *testing.T) {
	t.Parallel()
	for _, scope := range []string{"", "alice"} {
		server := redistest.Start(t)
		direct, s := server.Client(), newStore(t, server.Client())
		waited, unknown, watched := newOp("waited").in(scope), newOp("unknown").in(scope), newOp("watched").in(scope)
		for _, o := range []op{waited, unknown, watched} {
			o.started(t, s)
		}
		owned, err := unknown.unknown(s)
		wantOwned(t, "settle", owned, err)
		told := watched.awaits(t, s, server)
		configure(t, direct, "maxmemory", "1")

		done := make(chan error, 1)
		go func() { done <- s.AwaitOperation(ctx(), waited.ref().OperationRef) }()
		select {
		case err := <-done:
			t.Fatalf("await: %v", err)
		case <-time.After(300 * time.Millisecond):
		}
		before := unknown.inspect(t, s)
		_, err = waited.step(s)
		if !errors.Is(err, store.ErrFull) {
			t.Errorf("step: %v, want ErrFull", err)
		}
		if _, err := unknown.resolve(s, before.Version); !errors.Is(err, store.ErrFull) {
			t.Errorf("resolve: %v, want ErrFull", err)
		}
		if after := unknown.inspect(t, s); after.Version != before.Version || after.State != store.Unknown {
			t.Errorf("a failed resolve left %+v", after)
		}
		for _, o := range []op{watched, waited} {
			owned, err := o.settle(s, strings.Repeat("large", 10_000))
			wantOwned(t, "settle", owned, err)
			if r := o.inspect(t, s); r.State != store.NotRetained {
				t.Errorf("settled as %+v", r)
			}
		}
		began := time.Now()
		must(t, <-told)
		if took := time.Since(began); took > time.Second {
			t.Errorf("the push reached the known waiter after %v", took)
		}
		must(t, <-done)
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("the waiter that is not known noticed after %v", took)
		}
		if keys := lasting(t, direct); len(keys) > 0 {
			t.Errorf("%q do not expire", keys)
		}
	}
}

// A waiter whose push is lost notices the end with its next check.
func TestALostPushOfTheEnd(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Pushes(func(message string, deliver func(string)) {
		if !strings.HasPrefix(message, "ended ") {
			deliver(message)
		}
	})
	s := newStore(t, dial(t, proxy.Addr(), time.Second))
	o := newOp("k")
	o.started(t, direct)
	waiting := o.awaits(t, s, server)
	listening(t, server.Client(), 1)
	owned, err := o.settle(direct, "result")
	wantOwned(t, "settle", owned, err)
	began := time.Now()
	must(t, <-waiting)
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("noticed after %v", took)
	}
}

func TestAwaitWithoutPushes(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{"PUBLISH forbidden": "-publish", "SUBSCRIBE forbidden": "-subscribe", "channels forbidden": "resetchannels"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, app(t, rule))
			o := newOp("k")
			o.started(t, s)
			done := make(chan error, 1)
			go func() { done <- s.AwaitOperation(ctx(), o.ref().OperationRef) }()
			select {
			case err := <-done:
				t.Fatalf("await: %v", err)
			case <-time.After(100 * time.Millisecond):
			}
			began := time.Now()
			owned, err := o.settle(s, "result")
			wantOwned(t, "settle", owned, err)
			must(t, <-done)
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("noticed after %v", took)
			}
		})
	}
}

// A waiter learns of the end even if the keys of waiters are damaged: by the next check.
func TestDamagedWaiters(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(op, *redisstore.Store) (bool, error){
		"settle":  func(o op, s *redisstore.Store) (bool, error) { return o.settle(s, "result") },
		"abandon": op.abandon,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			direct, s := server.Client(), newStore(t, server.Client())
			o := newOp("k")
			o.started(t, s)
			waiting := o.awaits(t, s, server)
			must(t, direct.Set(ctx(), keysOf(t, direct, "*}w:*")[0], "damage", time.Hour).Err())
			owned, err := end(o, s)
			wantOwned(t, name, owned, err)
			must(t, <-waiting)
		})
	}
}

// Every script is sent again if the server has lost it.
func TestScriptsOfRecordsAreLoadedAgain(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct, s := server.Client(), newStore(t, server.Client())
	first, second := newOp("k"), newOp("k").by("second")
	first.started(t, s)
	for i, f := range []func(*redisstore.Store) (bool, error){
		first.inSteps, first.step,
		func(s *redisstore.Store) (bool, error) {
			c, cancel := context.WithTimeout(ctx(), 100*time.Millisecond)
			defer cancel()
			err := s.AwaitOperation(c, first.ref().OperationRef)
			return errors.Is(err, context.DeadlineExceeded), nil
		},
		first.unknown,
		func(s *redisstore.Store) (bool, error) { return first.inspect(t, s).State == store.Unknown, nil },
		func(s *redisstore.Store) (listed bool, err error) {
			for _, err := range s.ListUnresolved(ctx(), "orders") {
				return err == nil, err
			}
			return false, nil
		},
		second.reconcile,
		func(s *redisstore.Store) (bool, error) { return second.resolve(s, "") },
	} {
		must(t, direct.ScriptFlush(ctx()).Err())
		owned, err := f(s)
		if err != nil || !owned {
			t.Errorf("step %d: %v, %v", i, owned, err)
		}
	}
}

// A record that this version cannot read is an error that says so, and is left alone.
func TestRecordsOfAnotherLayout(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct, s := server.Client(), newStore(t, server.Client())
	o := newOp("k")
	o.started(t, s)
	key := onlyKey(t, direct)
	old := "2" + direct.Get(ctx(), key).Val()[1:126]
	must(t, direct.Set(ctx(), key, old, time.Hour).Err())
	_, err := o.by("other").begin(s)
	if wantUnavailable(t, err, false); !strings.Contains(err.Error(), "unknown layout") {
		t.Errorf("begin: %v", err)
	}
	_, _, err = s.InspectOperation(ctx(), o.ref().OperationRef)
	if wantUnavailable(t, err, false); !strings.Contains(err.Error(), "unknown layout") {
		t.Errorf("inspect: %v", err)
	}
	for r, err := range s.ListUnresolved(ctx(), "orders") {
		t.Errorf("listed %+v, %v", r, err)
	}
	for name, f := range map[string]func(*redisstore.Store) (bool, error){"mark": o.mark, "step": o.step, "renew": o.by("other").renew, "reconcile": o.reconcile} {
		if owned, _ := f(s); owned {
			t.Errorf("%s: it is owned", name)
		}
	}
	outcome, err := s.ResolveOperation(ctx(), store.ResolveRequest{OperationRef: o.ref().OperationRef, Owner: o.by("x").owner, State: store.NotRetained})
	if err != nil || outcome != store.RecordChanged {
		t.Errorf("resolve: %v, %v", outcome, err)
	}
	must(t, s.AwaitOperation(ctx(), o.ref().OperationRef))
	if now := direct.Get(ctx(), key).Val(); now != old {
		t.Errorf("the record is now %q", now)
	}
}

// A listing omits keys of another type; other calls fail.
func TestRecordOfAnotherType(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct, s := server.Client(), newStore(t, server.Client())
	o, fine := newOp("k"), newOp("fine")
	o.started(t, s)
	key := onlyKey(t, direct)
	must(t, direct.Del(ctx(), key).Err())
	must(t, direct.HSet(ctx(), key, "f", "v").Err())
	fine.started(t, s)
	owned, err := fine.unknown(s)
	wantOwned(t, "settle", owned, err)
	listed := 0
	for r, err := range s.ListUnresolved(ctx(), "orders") {
		if listed++; err != nil || r.ID != fine.id {
			t.Errorf("listed %+v, %v", r, err)
		}
	}
	if listed != 1 {
		t.Errorf("listed %d", listed)
	}
	_, _, err = s.InspectOperation(ctx(), o.ref().OperationRef)
	wantUnavailable(t, err, false)
	_, err = o.step(s)
	wantUnavailable(t, err, false)
	_, err = o.resolve(s, "x")
	wantUnavailable(t, err, false)
}
