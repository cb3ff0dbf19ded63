package observability_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// What no signal may hold. Tokens are added to these as they are made.
const (
	secretKey         = "sEcReT-key"
	secretScope       = "sEcReT-scope"
	secretIdempotency = "sEcReT-idempotency"
	secretRequest     = "sEcReT-request"
	secretResult      = "sEcReT-result"
	secretHeader      = "sEcReT-header"
	secretAddress     = "203.0.113.77"
	mark              = "sEcReT"

	// holder is the label of holders, which is in the spans of waiters.
	holder = "hOlDeR-of-the-lock"
)

// tokens are the secrets of holders and attempts.
type tokens struct {
	mu   sync.Mutex
	all  []string
	last store.AttemptRef // at an operation; its ID is no secret
}

func (k *tokens) add(made ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, made...)
}

// tapped is a store that records the tokens in its requests.
type tapped struct {
	store.Store
	tokens *tokens
}

func (s tapped) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	s.tokens.add(req.ID)
	return s.Store.AcquireLease(ctx, req)
}

func (s tapped) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	s.tokens.add(req.Owner, req.Fingerprint)
	s.tokens.last = req.AttemptRef
	return s.Store.BeginOperation(ctx, req)
}

// driveLimiter makes a limiter return every result, under a span each.
func driveLimiter(w *world, st store.Store, broken *storetest.Faulty) {
	l := w.limiter(st, tokenbucket.PerHour(1))
	allow := func(ctx context.Context) { _, _ = l.Allow(ctx, secretKey) }
	w.request(allow)
	w.request(allow) // is denied
	w.request(func(ctx context.Context) {
		_ = l.Wait(ctx, secretKey+" of a waiter")
		soon, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		_ = l.Wait(soon, secretKey) // is denied
		gone, cancel := context.WithCancel(ctx)
		cancel()
		_ = l.Wait(gone, secretKey)
		_, _ = l.Allow(gone, secretKey+" of a cancelled caller")
		late, cancel := context.WithTimeout(ctx, 0)
		defer cancel()
		_, _ = l.Allow(late, secretKey+" of a late caller")
		_ = l.Hold(ctx, secretKey, time.Minute)
		_ = l.Reset(ctx, secretKey)
	})
	for _, fault := range []storetest.Fault{storetest.Down, storetest.LostReply} {
		broken.Break(storetest.TakeTokens, fault)
		w.request(allow)
		w.request(func(ctx context.Context) { _ = l.Wait(ctx, secretKey) })
		broken.Mend(storetest.TakeTokens)
	}
	ok(w.t, l.SetEnforcement(tokenbucket.Enforcement{Mode: tokenbucket.Shadow}))
	w.request(allow)
	w.request(allow) // would be denied
}

// driveCandidate makes the candidate of a limiter decide in every way.
func driveCandidate(w *world, st store.Store, broken *storetest.Faulty) {
	l := w.limiter(st, tokenbucket.PerHour(2), tokenbucket.WithCandidate(tokenbucket.PerHour(1)))
	for range 2 {
		_, _ = l.Allow(w.t.Context(), secretKey+" of a candidate")
	}
	broken.Break(storetest.TakeTokens, storetest.Down)
	_, _ = l.Allow(w.t.Context(), secretKey+" of a candidate")
	broken.Mend(storetest.TakeTokens)
}

// driveSettlements settles reservations with every result, and sends a request whose cost is a
// mistake.
func driveSettlements(w *world, st store.Store, broken *storetest.Faulty) {
	l := w.limiter(st, tokenbucket.PerHour(10))
	settle := func(used int64) {
		w.request(func(ctx context.Context) {
			r := must(l.ReserveN(ctx, secretKey+" of a reservation", 2))
			ok(w.t, r.Use(l.Name(), used))
			_ = r.Settle(ctx)
		})
	}
	settle(1)
	broken.Break(storetest.SettleTokens, storetest.Down)
	settle(1)
	broken.Mend(storetest.SettleTokens)
	settle(100)
	mistake := ratelimit.Costs(func(*http.Request) tokenbucket.Cost { return tokenbucket.Cost{"images": 1} })
	key := nethttp.KeyFunc(func(*http.Request) (string, error) { return secretKey, nil })
	h := ratelimit.New(l, key, mistake, policy.Logger(w.logger()), policy.MeterProvider(w.meters))(http.NotFoundHandler())
	rw := httptest.NewRecorder()
	h.ServeHTTP(rw, httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, "/"+secretRequest, nil))
	if rw.Code != http.StatusInternalServerError {
		w.t.Errorf("a cost that no limit can charge: status %d", rw.Code)
	}
}

// driveFullAndClosed uses limiters on stores that are full, and that are closed.
func driveFullAndClosed(w *world) {
	full := memstore.New(memstore.WithMaxBuckets(1), memstore.RefuseNewBuckets())
	l := w.limiter(full, tokenbucket.PerHour(1))
	for _, key := range []string{"1", "2", "3"} {
		_, _ = l.Allow(w.t.Context(), secretKey+key)
	}
	_ = full.Close()
	_, _ = l.Allow(w.t.Context(), secretKey)
}

// driveOverload records an operation that has failed as one of an overloaded PostgreSQL does, as if
// it were one of Redis: no server of PostgreSQL runs here.
func driveOverload(w *world) {
	providers := telemetry.Providers{Meter: w.meters, Tracer: w.tracers}
	operations := telemetry.NewStore(providers, "github.com/lockkeeper/lockkeeper/core/redisstore", "redis", []string{"take_tokens"},
		func() bool { return false }, nil)
	operations.Begin(w.t.Context(), "take_tokens").End(w.t.Context(), store.ErrOverloaded)
}

// drivePresence shows this process in a store that is closed.
func drivePresence(w *world) {
	st := memstore.New()
	_ = st.Close()
	p := must(presence.Start(st, presence.WithLogger(w.logger())))
	until(w.t, "the store's refusal is logged", func() bool { return len(w.log.records(w.t, "the presence of this process")) > 0 })
	_ = p.Stop(w.t.Context())
}

// driveNamesakes creates two mechanisms with one name and different settings.
func driveNamesakes(w *world) {
	st := memstore.New()
	w.t.Cleanup(func() { _ = st.Close() })
	w.locker(st)
	w.locker(st, lock.WithFair())
}

// driveLocks makes a lock be acquired, busy, awaited, released, lost and expired.
func driveLocks(w *world, st store.Store, broken *storetest.Faulty) {
	t := w.t
	l, other := w.locker(st, lock.WithHolder(holder)), w.locker(st, lock.WithHolder(holder))
	w.request(func(ctx context.Context) {
		lease := must(l.Lock(ctx, secretKey))
		_, _ = other.TryLock(ctx, secretKey) // busy
		got := make(chan *lock.Lease)
		w.request(func(ctx context.Context) {
			go func() { got <- must(other.Lock(ctx, secretKey)) }()
			until(t, "there is a waiter", func() bool { return must(l.Inspect(ctx, secretKey)).Waiting == 1 })
			_ = lease.Unlock(ctx)
			lease = <-got
		})
		gone, cancel := context.WithCancel(ctx)
		left := make(chan error)
		go func() { _, err := l.Lock(gone, secretKey); left <- err }()
		until(t, "there is a waiter", func() bool { return must(l.Inspect(ctx, secretKey)).Waiting == 1 })
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		_ = must(other.ForceUnlock(ctx, secretKey, lease.Fence().Number)) // lost
		until(t, "the lease is lost", func() bool { return lease.Context().Err() != nil })
		_, _ = l.Lock(ctx, "") // an error without a name
		for _, err := range l.List(ctx) {
			if err != nil {
				t.Error(err)
			}
		}
	})
	if broken == nil {
		return
	}
	w.request(func(ctx context.Context) {
		broken.Break(storetest.AcquireLease, storetest.Down)
		_, _ = l.Lock(ctx, secretKey)
		broken.Mend(storetest.AcquireLease)
		short := w.locker(st, lock.WithTTL(brief))
		broken.Break(storetest.RenewLeases, storetest.Down)
		_ = must(short.Lock(ctx, secretKey+" that expires"))
		expires(w, "lock")
		broken.Mend(storetest.RenewLeases)
	})
}

// driveElection makes terms end in every way, and the work of a leader fail.
func driveElection(w *world, st store.Store, broken *storetest.Faulty) {
	t := w.t
	l := w.locker(st, lock.WithHolder(holder), lock.WithTTL(brief))
	e := must(election.New(l, secretKey+" of a leader", election.WithMeterProvider(w.meters), election.WithLogger(w.logger()),
		election.WithStepDown(time.Millisecond)))
	ctx, stop := context.WithCancel(t.Context())
	terms := 0
	err := e.Run(ctx, func(ctx context.Context, term *election.Term) error {
		switch terms++; terms {
		case 1: // resigned
			if n := w.sum("lockkeeper.election.leading"); n != 1 {
				t.Errorf("leads in %d roles, want 1", n)
			}
			return errors.New("the work failed")
		case 2: // lost
			_ = must(l.ForceUnlock(ctx, secretKey+" of a leader", term.Fence().Number))
			<-ctx.Done()
		case 3: // expired
			broken.Break(storetest.RenewLeases, storetest.Down)
			<-ctx.Done()
			broken.Mend(storetest.RenewLeases)
		default:
			stop()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || w.sum("lockkeeper.election.leading") != 0 {
		t.Errorf("Run: %v; leads in %d roles after it", err, w.sum("lockkeeper.election.leading"))
	}
}

// driveSemaphore makes permits be acquired, busy, awaited and expired.
func driveSemaphore(w *world, st store.Store, broken *storetest.Faulty) {
	t := w.t
	s, other := w.semaphore(st, semaphore.WithHolder(holder)), w.semaphore(st, semaphore.WithHolder(holder))
	w.request(func(ctx context.Context) {
		permit := must(other.Acquire(ctx, secretKey))
		_, _ = s.TryAcquire(ctx, secretKey) // busy
		gone, cancel := context.WithCancel(ctx)
		left := make(chan error)
		go func() { _, err := s.Acquire(gone, secretKey); left <- err }()
		until(t, "there is a waiter", func() bool { return must(s.Inspect(ctx, secretKey)).Waiting == 1 })
		cancel()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		_ = permit.Release(ctx)
	})
	for tier := semaphore.Critical; tier <= semaphore.Background; tier++ {
		w.request(func(ctx context.Context) {
			permit := must(s.Tier(tier).Acquire(ctx, secretKey))
			_, _ = other.Tier(tier).TryAcquire(ctx, secretKey) // busy
			_ = permit.Release(ctx)
		})
	}
	if broken == nil {
		return
	}
	gate := w.semaphore(w.memstore().Store, semaphore.WithAdaptiveCapacity(time.Second, 1, 10))
	_ = must(gate.Acquire(w.t.Context(), secretKey)).Release(w.t.Context())
	w.request(func(ctx context.Context) {
		broken.Break(storetest.AcquireLease, storetest.Down)
		_, _ = s.Acquire(ctx, secretKey)
		broken.Mend(storetest.AcquireLease)
		short := w.semaphore(st, semaphore.WithTTL(brief))
		broken.Break(storetest.RenewLeases, storetest.Down)
		_ = must(short.Acquire(ctx, secretKey+" that expires"))
		expires(w, "semaphore")
		broken.Mend(storetest.RenewLeases)
	})
}

// expires waits until a lease of a mechanism is reported as expired.
func expires(w *world, mechanism string) {
	until(w.t, "a lease expires", func() bool {
		for _, record := range w.log.records(w.t, "a lease was lost") {
			if record["mechanism"] == mechanism && record["end"] == "expired" {
				return true
			}
		}
		return false
	})
}

// brief is the TTL of leases that are to end. A busy machine tries to renew them before.
var brief = testpace.Scale(200 * time.Millisecond)

func operation(key string) guard.Operation {
	return guard.Operation{Scope: secretScope, Key: secretIdempotency + key, Fingerprint: []byte(secretRequest)}
}

// driveGuard makes a guard return every result, under a span each.
func driveGuard(w *world, st store.Store, broken *storetest.Faulty, known *tokens) {
	g := w.guard(st)
	begin := func(key string) (a *guard.Attempt) {
		w.request(func(ctx context.Context) { a, _, _ = g.Begin(ctx, operation(key)) })
		return a
	}
	ctx := w.t.Context()
	first := begin("1")
	begin("1") // in progress
	other := operation("1")
	other.Fingerprint = []byte(secretRequest + "'s other")
	w.request(func(ctx context.Context) { _, _, _ = g.Begin(ctx, other) })
	_ = first.Complete(ctx, guard.Result{Data: []byte(secretResult)})
	begin("1") // replayed
	_ = begin("2").CompleteUnknown(ctx)
	begin("2")
	_ = begin("3").CompleteNotRetained(ctx, 200)
	begin("3")
	_ = begin("4").Abandon(ctx)
	taken := begin("5")
	_ = must(st.AbandonOperation(ctx, known.last)) // as if its lease had ended
	begin("5")
	if err := taken.Complete(ctx, guard.Result{}); !errors.Is(err, guard.ErrLost) {
		w.t.Fatal(err)
	}
	driveResolutions(w, g, st)
	if broken == nil {
		return
	}
	driveUnreadable(w, g, st)
	broken.Break(storetest.BeginOperation, storetest.Down)
	begin("6")
	broken.Mend(storetest.BeginOperation)
	bounded := w.guard(st, guard.WithMaxPerScope(1))
	for _, key := range []string{"the only one", "one too many"} {
		op := operation(key)
		op.Scope += " that fills"
		w.request(func(ctx context.Context) { _, _, _ = bounded.Begin(ctx, op) })
	}
	unsure := begin("7")
	broken.BreakNext(storetest.SettleOperation, storetest.Down, 1)
	_ = unsure.Complete(ctx, guard.Result{})
	ended := func(n int) bool { return len(w.log.records(w.t, "no completions are pending")) == n }
	until(w.t, "a completion is confirmed", func() bool { return ended(1) })
	forgetful := w.guard(st, guard.WithTTL(brief), guard.WithRetention(time.Second))
	hopeless, _, err := forgetful.Begin(ctx, operation("hopeless"))
	if err != nil {
		w.t.Fatal(err)
	}
	broken.Break(storetest.SettleOperation, storetest.Down)
	_ = hopeless.Complete(ctx, guard.Result{Data: []byte(secretResult)})
	until(w.t, "a completion is given up", func() bool { return ended(2) })
	broken.Mend(storetest.SettleOperation)
	short := w.guard(st, guard.WithTTL(brief))
	w.request(func(ctx context.Context) {
		broken.Break(storetest.RenewOperations, storetest.Down)
		_, _, _ = short.Begin(ctx, operation("8"))
		expires(w, "idempotency")
		broken.Mend(storetest.RenewOperations)
	})
}

// driveResolutions has operations of unknown outcome be resolved, in every way, and not be
// reconciled.
func driveResolutions(w *world, g *guard.Guard, st store.Store) {
	ctx := w.t.Context()
	for i, how := range []guard.Resolution{
		guard.Happened(guard.Result{Data: []byte(secretResult)}), guard.HappenedAnswerLost(200), guard.NeverHappened(),
	} {
		op := operation("resolved" + string(rune('0'+i)))
		attempt, _, err := g.Begin(ctx, op)
		if err != nil {
			w.t.Fatal(err)
		}
		_ = attempt.CompleteUnknown(ctx)
		if err := g.Resolve(ctx, must(g.Inspect(ctx, op)), how, "ops", "asked the provider"); err != nil {
			w.t.Fatal(err)
		}
	}
	attempt, _, err := g.Begin(ctx, operation("not found out"))
	if err != nil {
		w.t.Fatal(err)
	}
	_ = attempt.CompleteUnknown(ctx)
	asking := w.guard(st, guard.WithReconcile(func(context.Context, guard.Record) (guard.Resolution, error) {
		return guard.Resolution{}, errors.New("the provider is down")
	}))
	for range 10 {
		if _, _, err := asking.Begin(ctx, operation("not found out")); !errors.Is(err, guard.ErrOutcomeUnknown) {
			w.t.Fatal(err)
		}
	}
}

// driveUnreadable makes a guard read, again and again, a result that no guard has written.
func driveUnreadable(w *world, g *guard.Guard, st store.Store) {
	ctx := w.t.Context()
	tap := &lastBegun{Store: st}
	attempt, _, err := w.guard(tap).Begin(ctx, operation("unreadable"))
	if err != nil {
		w.t.Fatal(err)
	}
	req := tap.last
	_ = must(st.SettleOperation(ctx, store.SettleRequest{
		AttemptRef: req.AttemptRef, Fingerprint: req.Fingerprint, Number: attempt.Number(), State: store.Completed,
		Data: []byte{0xff}, Retention: time.Hour,
	}))
	_ = attempt.Complete(ctx, guard.Result{})
	for range 10 {
		if _, _, err := g.Begin(ctx, operation("unreadable")); !errors.Is(err, guard.ErrNotRetained) {
			w.t.Fatal(err)
		}
	}
}

// lastBegun is a store that records the request of the last operation.
type lastBegun struct {
	store.Store
	last store.BeginRequest
}

func (s *lastBegun) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	s.last = req
	return s.Store.BeginOperation(ctx, req)
}
