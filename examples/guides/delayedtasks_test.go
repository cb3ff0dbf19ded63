package guides_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// shop has orders that are cancelled if they are not paid in time.
type shop struct {
	unpaid  *delay.Queue
	effects *guard.Guard
	db      orderDB
	mail    mailProvider
	payIn   time.Duration
}

func newShop(st store.Store, db orderDB, mail mailProvider, payIn time.Duration) (*shop, error) {
	unpaid, err := delay.New(st, "unpaid")
	if err != nil {
		return nil, err
	}
	effects, err := guard.New(st, "unpaid", guard.WithRerun())
	if err != nil {
		return nil, err
	}
	return &shop{unpaid, effects, db, mail, payIn}, nil
}

// orderDB is what the code needs of your database. Each method is one statement or one transaction.
type orderDB interface {
	// insertOrder inserts an order whose status is "unpaid", and takes its stock.
	insertOrder(ctx context.Context, order string) error
	// setPaid is UPDATE orders SET status = 'paid' WHERE id = $1 AND status = 'unpaid'. It reports
	// whether the order is paid.
	setPaid(ctx context.Context, order string) (bool, error)
	// setCancelled is UPDATE orders SET status = 'cancelled' WHERE id = $1 AND status = 'unpaid',
	// and gives the stock back if that has changed a row. It reports whether the order is
	// cancelled, also if it was before.
	setCancelled(ctx context.Context, order string) (bool, error)
}

// mailProvider sends a mail once for each key.
type mailProvider interface {
	send(ctx context.Context, key, order string) error
}

// place places an order. The timer comes first: one without an order changes nothing when it runs,
// and an order without a timer would keep its stock without end.
func (s *shop) place(ctx context.Context, order string) error {
	if _, err := s.unpaid.Put(ctx, order, nil, s.payIn); err != nil {
		return err
	}
	return s.db.insertOrder(ctx, order)
}

var errOrderCancelled = errors.New("the order is cancelled, since it was not paid in time")

// pay records a payment. The row decides whether it is in time; the cancel saves a run.
func (s *shop) pay(ctx context.Context, order string) error {
	switch paid, err := s.db.setPaid(ctx, order); {
	case err != nil:
		return err
	case !paid:
		return errOrderCancelled
	}
	if _, err := s.unpaid.Cancel(ctx, order); err != nil {
		slog.WarnContext(ctx, "the timer of a paid order runs, and changes nothing", "error", err)
	}
	return nil
}

// expire is what the timers run.
func (s *shop) expire(ctx context.Context, t *delay.Task) error {
	err := guard.Once(ctx, s.effects, guard.Operation{Key: t.ID()}, func(ctx context.Context) error {
		cancelled, err := s.db.setCancelled(ctx, t.Key())
		if err != nil || !cancelled { // it is paid
			return err
		}
		return s.mail.send(ctx, t.ID(), t.Key())
	})
	switch action, after := guard.Disposition(err); {
	case action == guard.DeadLetter: // a further attempt would fail as well
		return delay.Bury(err)
	case action == guard.RetryLater && after > 0: // another attempt may still run
		return delay.Again(after)
	}
	return err // nil: it is done. An error: it runs again after the back-off
}

// work runs the timers that are due, eight at a time, until ctx ends or the store is shut down.
func (s *shop) work(ctx context.Context) error {
	return s.unpaid.Run(ctx, 8, s.expire)
}

// reviveBuried runs buried tasks again whose cause is mended.
func reviveBuried(ctx context.Context, q *delay.Queue, mended func(delay.State) bool) error {
	for task, err := range q.Buried(ctx) {
		if err != nil {
			return err
		}
		fmt.Printf("%s, after %d attempts: %s; it is removed in %v\n", task.Key, task.Attempt, task.Reason, task.Expires)
		if !mended(task) {
			continue
		}
		if _, err := q.Revive(ctx, task.Key); err != nil && !errors.Is(err, delay.ErrNoTask) { // another operator was faster
			return err
		}
	}
	return nil
}

// exportCounts has the numbers of a queue collected with the other metrics: each collection is one
// call of the store.
func exportCounts(meter metric.Meter, q *delay.Queue) error {
	tasks, err := meter.Int64ObservableGauge("shop.tasks", metric.WithUnit("{task}"))
	if err != nil {
		return err
	}
	oldest, err := meter.Float64ObservableGauge("shop.tasks.oldest_due", metric.WithUnit("s"))
	if err != nil {
		return err
	}
	queue := attribute.String("queue", q.Name())
	_, err = meter.RegisterCallback(func(ctx context.Context, o metric.Observer) error {
		counts, err := q.Count(ctx)
		if err != nil {
			return err
		}
		for state, n := range map[string]int{"waiting": counts.Waiting, "running": counts.Running, "buried": counts.Buried} {
			o.ObserveInt64(tasks, int64(n), metric.WithAttributes(queue, attribute.String("state", state)))
		}
		o.ObserveFloat64(oldest, counts.Oldest.Seconds(), metric.WithAttributes(queue))
		return nil
	}, tasks, oldest)
	return err
}

// orders are the orders of a test, by number.
type orders struct {
	mu     sync.Mutex
	status map[string]string
	stock  int
	fails  error
}

func (o *orders) insertOrder(_ context.Context, order string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.status[order] = "unpaid"
	o.stock--
	return nil
}

func (o *orders) update(order, to string) bool {
	changed := o.status[order] == "unpaid"
	if changed {
		o.status[order] = to
	}
	return changed
}

func (o *orders) setPaid(_ context.Context, order string) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.update(order, "paid")
	return o.status[order] == "paid", nil
}

func (o *orders) setCancelled(_ context.Context, order string) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fails != nil {
		return false, o.fails
	}
	if o.update(order, "cancelled") {
		o.stock++
	}
	return o.status[order] == "cancelled", nil
}

func (o *orders) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.fails = err
}

// mails counts the mails for an order, and the calls for them.
type mails struct {
	mu    sync.Mutex
	calls int
	keys  map[string]string // the order by the key
	fails int               // the next calls
}

func (m *mails) send(_ context.Context, key, order string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls++
	if m.fails > 0 {
		m.fails--
		return errors.New("the provider is down")
	}
	m.keys[key] = order
	return nil
}

// Half of the orders are paid when their time is over. Each ends as paid or as cancelled, and the
// stock adds up.
func TestOrdersThatAreNotPaid(t *testing.T) {
	test := func(t *testing.T, st store.Store, payIn time.Duration) {
		db, mail := &orders{status: make(map[string]string), stock: 100}, &mails{keys: make(map[string]string), fails: 2}
		s := must(newShop(st, db, mail, payIn))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.work(ctx) }()
		var buyers sync.WaitGroup
		for n := range 40 {
			order := fmt.Sprint("order/", n)
			if err := s.place(ctx, order); err != nil {
				t.Fatal(err)
			}
			buyers.Go(func() {
				switch n % 4 {
				case 0: // never paid
					return
				case 1:
					<-time.After(payIn / 10)
				default:
					<-time.After(payIn)
				}
				if err := s.pay(ctx, order); err != nil && !errors.Is(err, errOrderCancelled) {
					t.Error(err)
				}
			})
		}
		buyers.Wait()
		for must(s.unpaid.Count(ctx)) != (delay.Counts{}) {
			<-time.After(10 * time.Millisecond)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		paid, cancelled := 0, 0
		for order, status := range db.status {
			switch status {
			case "paid":
				paid++
			case "cancelled":
				cancelled++
			default:
				t.Errorf("%s is %s", order, status)
			}
		}
		if paid < 10 || cancelled < 10 || paid+cancelled != 40 || db.stock != 100-paid {
			t.Errorf("%d are paid, %d cancelled, %d in stock", paid, cancelled, db.stock)
		}
		if len(mail.keys) != cancelled || mail.calls != cancelled+2 {
			t.Errorf("%d mails by %d calls for %d orders, want a repeat of the two that failed", len(mail.keys), mail.calls, cancelled)
		}
	}
	t.Run("in memory", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st := memstore.New()
			defer st.Close()
			test(t, st, 15*time.Minute)
		})
	})
	t.Run("on Redis", func(t *testing.T) {
		t.Parallel()
		client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr(), ContextTimeoutEnabled: true})
		defer func() { _ = client.Close() }()
		st := must(redisstore.New(client, redisstore.WithTimeout(3*time.Second)))
		defer st.Close()
		test(t, st, testpace.Scale(time.Second))
	})
}

// The effect happens once although the end of each attempt is lost.
func TestEffectOfATaskHappensOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewFaulty(memstore.New())
		defer func() { _ = st.Close() }()
		db, mail := &orders{status: make(map[string]string)}, &mails{keys: make(map[string]string)}
		s := must(newShop(st, db, mail, time.Minute))
		if err := s.place(t.Context(), "order/1"); err != nil {
			t.Fatal(err)
		}
		st.Break(storetest.SettleTasks, storetest.Down) // as if each worker died before its task is done
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.work(ctx) }()
		time.Sleep(time.Minute + store.FirstTaskLease + time.Second)
		if task := must(s.unpaid.Inspect(ctx, "order/1")); mail.calls != 1 || task.State != "running" || task.Attempt != 2 {
			t.Errorf("%d mails in the second attempt: %+v", mail.calls, task)
		}
		st.Mend(storetest.Any)
		time.Sleep(time.Hour)
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if _, err := s.unpaid.Inspect(t.Context(), "order/1"); !errors.Is(err, delay.ErrNoTask) || mail.calls != 1 || db.status["order/1"] != "cancelled" {
			t.Errorf("%v, %d mails, the order is %s", err, mail.calls, db.status["order/1"])
		}
	})
}

// A task that fails ten times is buried, seen in the metrics, and runs again once it is revived.
func TestBuriedTasksAreRevived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		db, mail := &orders{status: make(map[string]string)}, &mails{keys: make(map[string]string)}
		s := must(newShop(st, db, mail, time.Minute))
		reader := sdkmetric.NewManualReader()
		meters := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
		if err := exportCounts(meters.Meter("shop"), s.unpaid); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.work(ctx) }()
		if err := s.place(ctx, "order/1"); err != nil {
			t.Fatal(err)
		}
		db.fail(errors.New("no such column"))
		time.Sleep(time.Hour)
		if n := tasksIn(t, reader, "buried"); n != 1 {
			t.Errorf("%d tasks are buried", n)
		}
		db.fail(nil)
		if err := reviveBuried(ctx, s.unpaid, func(t delay.State) bool { return t.Reason == "no such column" }); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if n := tasksIn(t, reader, "buried"); n != 0 || db.status["order/1"] != "cancelled" || mail.calls != 1 {
			t.Errorf("%d tasks are buried, the order is %s, %d mails", n, db.status["order/1"], mail.calls)
		}
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// tasksIn returns the exported number of tasks in a state.
func tasksIn(t *testing.T, reader *sdkmetric.ManualReader, state string) int64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		gauge, ok := m.Data.(metricdata.Gauge[int64])
		if !ok {
			continue
		}
		for _, p := range gauge.DataPoints {
			if v, _ := p.Attributes.Value("state"); v.AsString() == state {
				return p.Value
			}
		}
	}
	t.Fatalf("no number of tasks that are %s", state)
	return 0
}
