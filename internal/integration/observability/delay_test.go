package observability_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func (w *world) queue(st store.Delays, opts ...delay.Option) *delay.Queue {
	q := must(delay.New(st, "unpaid", append(opts, delay.WithMeterProvider(w.meters), delay.WithTracerProvider(w.tracers),
		delay.WithLogger(w.logger()), delay.WithHolder(holder))...))
	w.t.Cleanup(func() { _ = q.Close() })
	return q
}

func (s tapped) PutTask(ctx context.Context, req store.PutTaskRequest) (store.PutTaskReply, error) {
	s.tokens.add(req.ID)
	return s.Store.PutTask(ctx, req)
}

func (s tapped) TakeTasks(ctx context.Context, req store.TakeTasksRequest) (store.TakeTasksReply, error) {
	s.tokens.add(req.Owner)
	return s.Store.TakeTasks(ctx, req)
}

// driveDelay makes puts and cancels have every outcome, and attempts end in every way that needs no
// fault.
func driveDelay(w *world, st store.Store) {
	q := w.queue(st)
	put := func(key string, after time.Duration, opts ...delay.PutOption) {
		w.request(func(ctx context.Context) { _ = must(q.Put(ctx, secretKey+key, []byte(secretRequest), after, opts...)) })
	}
	cancel := func(key string) { _ = must(q.Cancel(w.t.Context(), secretKey+key)) }
	take := func() *delay.Task { return must(q.Take(w.t.Context())) }
	put("", time.Hour)
	put("", time.Hour, delay.KeepFirst())
	put("", 0) // moves it
	task := take()
	put("", 0) // follows it
	ok(w.t, task.Done(w.t.Context()))
	task = take()
	cancel("") // it runs
	ok(w.t, task.Done(w.t.Context()))
	cancel("") // it is gone
	put("", time.Hour)
	cancel("") // it is prevented
	put("", 0)
	ok(w.t, take().Again(w.t.Context(), time.Hour))
	cancel("") // it was tried
	put("", 0)
	ok(w.t, take().Bury(w.t.Context(), "no attempt can succeed"))
	if revived := must(q.Revive(w.t.Context(), secretKey)); !revived {
		w.t.Error("the buried task is not revived")
	}
	ok(w.t, take().Done(w.t.Context()))
	_, _ = q.Put(w.t.Context(), "", nil, 0) // an error without a name
	full := w.queue(st, delay.WithMaxTasks(1))
	_ = must(full.Put(w.t.Context(), secretKey+" that fills it", nil, time.Hour))
	if _, err := full.Put(w.t.Context(), secretKey, nil, 0); !errors.Is(err, delay.ErrFull) {
		w.t.Error(err)
	}
	_ = must(full.Cancel(w.t.Context(), secretKey+" that fills it"))
	driveDamagedTask(w, st, q)
}

// driveDamagedTask makes a queue take a task that no queue has put.
func driveDamagedTask(w *world, st store.Delays, q *delay.Queue) {
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan error)
	go func() {
		ended <- q.Run(ctx, 1, func(context.Context, *delay.Task) error { return errors.New("it ran") })
	}()
	_ = must(st.PutTask(ctx, store.PutTaskRequest{Queue: q.Name(), Key: secretKey + " that is damaged", ID: "xxxxxxxxxxxxxxxxxxxxxx", Payload: []byte("2")}))
	until(w.t, "a damaged task is buried", func() bool { return must(q.Count(ctx)).Buried == 1 })
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		w.t.Error(err)
	}
	_ = must(q.Cancel(w.t.Context(), secretKey+" that is damaged"))
}

// driveDelayFaults makes puts, takes and cancels fail, and attempts be lost, or not be confirmed.
func driveDelayFaults(w *world, broken *storetest.Faulty) {
	ctx, q := w.t.Context(), w.queue(broken)
	broken.Break(storetest.Any, storetest.Down)
	_, _ = q.Put(ctx, secretKey, nil, 0)
	_, _ = q.Cancel(ctx, secretKey)
	for range 10 {
		if _, err := q.Take(ctx); !errors.Is(err, store.ErrUnavailable) {
			w.t.Fatal(err)
		}
	}
	broken.Mend(storetest.Any)
	_ = must(q.Put(ctx, secretKey, nil, 0))
	ok(w.t, must(q.Take(ctx)).Done(ctx)) // tasks are taken again
	short := w.queue(broken, delay.WithLease(brief))
	taken := func(fault storetest.Op) *delay.Task {
		_ = must(short.Put(ctx, secretKey, []byte(secretRequest), 0))
		task := must(short.Take(ctx))
		broken.Break(fault, storetest.Down)
		return task
	}
	task := taken(storetest.RenewTasks)
	expires(w, "delay")
	broken.Mend(storetest.RenewTasks)
	if err := task.Done(ctx); !errors.Is(err, delay.ErrLost) {
		w.t.Error(err)
	}
	if err := taken(storetest.SettleTasks).Done(ctx); !errors.Is(err, store.ErrUnavailable) {
		w.t.Error(err)
	}
	broken.Mend(storetest.SettleTasks)
	_ = must(q.Cancel(ctx, secretKey))
}

// An outage is logged when it begins and when it ends, however many takes fail.
func TestTakesThatFailAreLoggedOnce(t *testing.T) {
	w := newWorld(t)
	broken := w.memstore()
	q := w.queue(broken)
	broken.Break(storetest.TakeTasks, storetest.Down)
	for range 10 {
		if _, err := q.Take(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	broken.Mend(storetest.Any)
	_ = must(q.Put(t.Context(), "k", nil, 0))
	ok(t, must(q.Take(t.Context())).Done(t.Context()))
	begins, ends := w.log.records(t, "tasks cannot be taken"), w.log.records(t, "tasks are taken again")
	if len(begins) != 1 || begins[0]["level"] != "WARN" || len(ends) != 1 || len(w.log.records(t, "")) != 2 {
		t.Errorf("ten takes that fail are logged as\n%s", w.log.String())
	}
}

// The span of a run links to that of its put, in another trace.
func TestRunLinksToItsPut(t *testing.T) {
	onBothStores(t, func(t *testing.T, w *world, st store.Store) {
		q := w.queue(st)
		puts := w.request(func(ctx context.Context) { _ = must(q.Put(ctx, "k", nil, 0)) })
		for range 2 { // also of a further attempt
			ok(t, must(q.Take(t.Context())).Again(t.Context(), 0))
			span := w.last("run unpaid")
			if len(span.Links) != 1 || span.Links[0].SpanContext.SpanID() != puts.SpanContext.SpanID() ||
				span.Links[0].SpanContext.TraceID() != puts.SpanContext.TraceID() {
				t.Errorf("it links to %v, want %v", span.Links, puts.SpanContext)
			}
			if end, _ := value(span, "lockkeeper.delay.end"); end != "again" {
				t.Errorf("it has ended by %q", end)
			}
		}
	})
}

// A lost lease is one event, on the span of the run.
func TestLossIsAnEventOfTheRun(t *testing.T) {
	w := newWorld(t)
	broken := w.memstore()
	q := w.queue(broken, delay.WithLease(200*time.Millisecond))
	_ = must(q.Put(t.Context(), "k", nil, 0))
	broken.Break(storetest.RenewTasks, storetest.Down)
	task := must(q.Take(t.Context()))
	expires(w, "delay")
	if err := task.Done(t.Context()); !errors.Is(err, delay.ErrLost) {
		t.Error(err)
	}
	span := w.last("run unpaid")
	if len(span.Events) != 1 || span.Events[0].Name != "lockkeeper.lease.lost" {
		t.Errorf("the run's span has the events %v", span.Events)
	}
	if end, _ := value(span, "lockkeeper.delay.end"); end != "lost" {
		t.Errorf("it has ended by %q", end)
	}
	if n := w.sum("lockkeeper.lease.losses"); n != 1 {
		t.Errorf("%d losses are counted", n)
	}
	if n := w.sum("lockkeeper.delay.running"); n != 0 {
		t.Errorf("%d tasks run", n)
	}
}
