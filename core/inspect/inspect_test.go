package inspect_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// bare is a store that keeps leases and records, and has no further abilities.
type bare struct {
	store.Leases
	store.Records
}

func (b bare) AtShutdown(f func(context.Context) error) func() { return b.Leases.AtShutdown(f) }

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// inBubble runs a test in virtual time, on a store that can be broken.
func inBubble(t *testing.T, test func(ctx context.Context, st *storetest.Faulty)) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		test(t.Context(), storetest.NewFaulty(st))
	})
}

var sampled = trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})

func TestLocks(t *testing.T) {
	inBubble(t, func(ctx context.Context, st *storetest.Faulty) {
		locker := must(lock.New(st, "orders", lock.WithHolder("till 7"), lock.WithTTL(time.Minute)))
		old := must(locker.Lock(ctx, "old"))
		time.Sleep(time.Second)
		traced := must(locker.Lock(trace.ContextWithSpanContext(ctx, sampled), "new"))
		waiting, stop := context.WithCancel(ctx)
		ended := make(chan error)
		go func() {
			_, err := must(lock.New(st, "orders", lock.WithHolder("till 8"))).Lock(waiting, "old")
			ended <- err
		}()
		time.Sleep(time.Second)

		locks := must(inspect.Locks(ctx, st, "orders"))
		if locks.More || len(locks.Items) != 2 || locks.Items[0].Key != "old" || locks.Items[1].Key != "new" {
			t.Fatalf("listed %+v", locks)
		}
		first := locks.Items[0]
		if h := first.Holders[0]; h.Fence != old.Fence().Number || h.Label != "till 7" || h.Age != 2*time.Second || h.Trace.IsValid() {
			t.Errorf("holder %+v", h)
		}
		if w := first.Waiters[0]; first.Waiting != 1 || w.Label != "till 8" || w.Age != time.Second {
			t.Errorf("%d waiting, the first is %+v", first.Waiting, w)
		}
		one := must(inspect.Lock(ctx, st, "orders", "new"))
		if h := one.Holders[0]; h.Trace.TraceID() != sampled.TraceID() || h.Label != "till 7" || h.Weight != store.MaxCapacity {
			t.Errorf("holder %+v", h)
		}
		if free := must(inspect.Lock(ctx, st, "orders", "free")); free.Holders != nil || free.Waiting != 0 {
			t.Errorf("a free lock is %+v", free)
		}
		if others := must(inspect.Semaphores(ctx, st, "orders")); len(others.Items) != 0 {
			t.Errorf("semaphores of the locks' name: %+v", others)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the waiter: %v", err)
		}
		_, _ = old.Unlock(ctx), traced.Unlock(ctx)
	})
}

func TestSemaphores(t *testing.T) {
	inBubble(t, func(ctx context.Context, st *storetest.Faulty) {
		ports := must(semaphore.New(st, "ports", 3))
		permit := must(ports.Acquire(ctx, "k"))
		for _, key := range append(must(inspect.Semaphores(ctx, st, "ports")).Items, must(inspect.Semaphore(ctx, st, "ports", "k"))) {
			if key.Key != "k" || key.InUse != 1 || len(key.Holders) != 1 {
				t.Errorf("%+v", key)
			}
		}
		_ = permit.Release(ctx)
	})
}

func TestUnresolved(t *testing.T) {
	inBubble(t, func(ctx context.Context, st *storetest.Faulty) {
		charges := must(guard.New(st, "charges", guard.WithHolder("till 7")))
		for _, key := range []string{"first", "second"} {
			a, _, err := charges.Begin(trace.ContextWithSpanContext(ctx, sampled), guard.Operation{Key: key})
			if err != nil {
				t.Fatal(err)
			}
			_ = a.CompleteUnknown(ctx)
			time.Sleep(time.Second)
		}
		found := must(inspect.Unresolved(ctx, st, "charges"))
		if len(found.Items) != 2 || found.More || found.Items[0].Changed != 2*time.Second || found.Items[1].Changed != time.Second {
			t.Fatalf("listed %+v", found)
		}
		if op := found.Items[0]; op.Holder != "till 7" || op.Trace.TraceID() != sampled.TraceID() || !op.Unresolved() {
			t.Errorf("%+v", op)
		}
	})
}

func TestTasks(t *testing.T) {
	inBubble(t, func(ctx context.Context, st *storetest.Faulty) {
		queue := must(delay.New(st, "unpaid", delay.WithHolder("till 7")))
		put := func(key string, after time.Duration) { must(queue.Put(ctx, key, nil, after)) }
		put("bad 1", 0)
		bad := must(queue.Take(ctx))
		if err := bad.Bury(ctx, "no such order"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		put("bad 2", 0)
		if err := must(queue.Take(ctx)).Bury(ctx, "another currency"); err != nil {
			t.Fatal(err)
		}
		put("runs", 0)
		running := must(queue.Take(ctx))
		put("last", time.Hour)
		put("next", time.Minute)
		put("due", 0)
		time.Sleep(time.Second)
		put("just due", 0)

		counts := must(inspect.Queue(ctx, st, "unpaid"))
		if want := (store.TaskCounts{Waiting: 4, Running: 1, Buried: 2, Oldest: time.Second}); counts != want {
			t.Errorf("%+v, want %+v", counts, want)
		}
		keys := func(l inspect.Listing[inspect.DelayedTask]) (keys []string) {
			for _, task := range l.Items {
				keys = append(keys, task.Key)
			}
			return keys
		}
		listed := must(inspect.Tasks(ctx, st, "unpaid"))
		if got := keys(listed); !slices.Equal(slices.Sorted(slices.Values(got[1:3])), []string{"just due", "runs"}) ||
			got[0] != "due" || !slices.Equal(got[3:], []string{"next", "last"}) || listed.More {
			t.Fatalf("listed %q", got)
		}
		buried := must(inspect.Buried(ctx, st, "unpaid"))
		if got := keys(buried); !slices.Equal(got, []string{"bad 1", "bad 2"}) || buried.Items[0].Reason != "no such order" {
			t.Fatalf("buried %+v", buried)
		}
		if buried.Items[0].TaskID != bad.ID() {
			t.Errorf("ID %s, want %s", buried.Items[0].TaskID, bad.ID())
		}
		task, found, err := inspect.Task(ctx, st, "unpaid", "runs")
		if err != nil || !found || task.Holder != "till 7" || task.State != store.TaskTaken || task.TaskID != running.ID() {
			t.Errorf("%+v, %t, %v", task, found, err)
		}
		if task, found, err := inspect.Task(ctx, st, "unpaid", "absent"); err != nil || found {
			t.Errorf("%+v, %v", task, err)
		}
		st.Break(storetest.ListTasks, storetest.Down)
		if _, err := inspect.Buried(ctx, st, "unpaid"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("of a store that is down: %v", err)
		}
		st.Mend(storetest.Any)
		_, _ = running.Done(ctx), queue.Close()
	})
}

// A listing ends at its bound, or at an error.
func TestListingsEnd(t *testing.T) {
	inBubble(t, func(ctx context.Context, st *storetest.Faulty) {
		locker := must(lock.New(st, "many"))
		for n := range inspect.MaxListed + 1 {
			lease := must(locker.Lock(ctx, strconv.Itoa(n)))
			defer func() { _ = lease.Unlock(ctx) }()
			if n < inspect.MaxListed-1 {
				continue
			}
			if l := must(inspect.Locks(ctx, st, "many")); len(l.Items) != inspect.MaxListed || l.More != (n == inspect.MaxListed) {
				t.Errorf("%d of %d listed, more: %t", len(l.Items), n+1, l.More)
			}
		}
		st.Break(storetest.ListLeases, storetest.Down)
		if _, err := inspect.Locks(ctx, st, "many"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("of a store that is down: %v", err)
		}
		st.Mend(storetest.ListLeases)
	})
}

func TestMechanisms(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	if found := inspect.Mechanisms(st); len(found) != 0 {
		t.Errorf("an unused store has %+v", found)
	}
	first, second := must(lock.New(st, "orders")), must(lock.New(st, "orders"))
	_, _ = must(tokenbucket.New(st, "api", tokenbucket.PerSecond(5))), must(guard.New(st, "charges", guard.WithSecret(make([]byte, 32))))
	queue := must(delay.New(st, "unpaid"))
	_ = must(election.New(must(lock.New(st, "roles")), "scheduler"))
	_ = second.Close()
	var got []string
	for _, m := range inspect.Mechanisms(st) {
		if m.Settings == "" || m.Members != 1 {
			t.Errorf("%+v", m)
		}
		got = append(got, m.Kind+" "+m.Name)
	}
	if want := []string{"delay unpaid", "idempotency charges", "lock orders", "lock roles", "rate_limit api"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	_, _ = first.Close(), queue.Close()
}

func TestFindings(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	if found := must(inspect.Findings(t.Context(), st)); len(found) != 1 || found[0].Remedy == "" {
		t.Errorf("%+v", found)
	}
}

func TestABareStore(t *testing.T) {
	mem := memstore.New()
	defer mem.Close()
	st := bare{mem, mem}
	ctx := t.Context()
	_, locks := inspect.Locks(ctx, st, "n")
	_, one := inspect.Lock(ctx, st, "n", "k")
	_, unresolved := inspect.Unresolved(ctx, st, "n")
	_, findings := inspect.Findings(ctx, st)
	_, counts := inspect.Queue(ctx, st, "n")
	_, _, task := inspect.Task(ctx, st, "n", "k")
	_, tasks := inspect.Tasks(ctx, st, "n")
	_, buried := inspect.Buried(ctx, st, "n")
	for _, err := range []error{locks, one, unresolved, findings, counts, task, tasks, buried} {
		if !errors.Is(err, store.ErrNotSupported) {
			t.Errorf("%v", err)
		}
	}
	if found := inspect.Mechanisms(st); found != nil {
		t.Errorf("%+v", found)
	}
}
