package semaphore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// wiretap is a store with faults that records requests and grants, and can lose a permit.
type wiretap struct {
	*storetest.Faulty

	mu       sync.Mutex
	released []int            // how many in each call
	sent     []int            // the capacity of each request
	granted  []store.LeaseRef // in order
	lost     map[string]bool  // by ID
}

func newWiretap() *wiretap {
	return &wiretap{Faulty: storetest.NewFaulty(memstore.New()), lost: map[string]bool{}}
}

func (w *wiretap) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	reply, err := w.Faulty.AcquireLease(ctx, req)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent = append(w.sent, req.Capacity)
	if err == nil && reply.Outcome == store.Granted {
		w.granted = append(w.granted, req.Ref(reply.Fence))
	}
	return reply, err
}

func (w *wiretap) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	w.mu.Lock()
	w.released = append(w.released, len(refs))
	w.mu.Unlock()
	was, err := w.Faulty.ReleaseLeases(ctx, refs)
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range was { // for the store, the release of a lost permit is a repeat
		if w.lost[refs[i].ID] {
			was[i] = store.NotHeld
		}
	}
	return was, err
}

// batches returns the number of permits of each release.
func (w *wiretap) batches() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int(nil), w.released...)
}

// capacities returns the capacity of each request to acquire.
func (w *wiretap) capacities() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]int(nil), w.sent...)
}

// lose ends the last granted permit, as the loss of the store's state does.
func (w *wiretap) lose(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	last := w.granted[len(w.granted)-1:]
	if was, err := w.Store.ReleaseLeases(t.Context(), last); err != nil || was[0] != store.Released {
		t.Fatalf("ReleaseLeases: %v, %v", was, err)
	}
	w.lost[last[0].ID] = true
}

// inBubble runs a test with faked time, on a store that is closed after its Semaphores.
func inBubble(t *testing.T, test func(t *testing.T, w *wiretap)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWiretap()
		t.Cleanup(func() { _ = w.Close() })
		test(t, w)
	})
}

func newSemaphore(t *testing.T, st store.Leases, capacity int, opts ...semaphore.Option) *semaphore.Semaphore {
	t.Helper()
	s := must(semaphore.New(st, "test", capacity, opts...))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustAcquire(t *testing.T, s *semaphore.Semaphore, n int) *semaphore.Permit {
	t.Helper()
	p, err := s.TryAcquireN(t.Context(), "k", n)
	if err != nil {
		t.Fatalf("TryAcquireN: %v", err)
	}
	return p
}

func mustRelease(t *testing.T, permits ...*semaphore.Permit) {
	t.Helper()
	for _, p := range permits {
		ok(t, p.Release(t.Context()))
	}
}

// wantEnded checks that a permit's context has ended, and why.
func wantEnded(t *testing.T, p *semaphore.Permit, cause error) {
	t.Helper()
	if ctx := p.Context(); ctx.Err() == nil || !errors.Is(context.Cause(ctx), cause) {
		t.Errorf("the permit's context: %v because of %v, want %v", ctx.Err(), context.Cause(ctx), cause)
	}
}

func wantValid(t *testing.T, p *semaphore.Permit) {
	t.Helper()
	if err := p.Context().Err(); err != nil {
		t.Errorf("the permit's context has ended: %v", context.Cause(p.Context()))
	}
}

// wantState checks the weight in use and the number of places in the queue.
func wantState(t *testing.T, s *semaphore.Semaphore, inUse, waiting int) {
	t.Helper()
	synctest.Wait()
	state, err := s.Inspect(context.Background(), "k")
	if err != nil || state.Key != "k" || state.InUse != inUse || len(state.Waiters) != waiting {
		t.Errorf("state %+v, %v; want %d in use, %d waiting", state, err, inUse, waiting)
	}
}

// pending is a call in flight.
type pending struct {
	permit *semaphore.Permit
	err    error
	done   chan struct{}
}

// start calls AcquireN, and returns when that waits or has returned.
func start(ctx context.Context, s *semaphore.Semaphore, n int) *pending {
	p := &pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.permit, p.err = s.AcquireN(ctx, "k", n)
	}()
	synctest.Wait()
	return p
}

func (p *pending) returned() bool {
	synctest.Wait()
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *pending) got() bool { return p.returned() && p.err == nil }

// wantGot checks which calls have their permits, and that the others wait.
func wantGot(t *testing.T, calls []*pending, want ...int) {
	t.Helper()
	got := make([]bool, len(calls))
	for _, i := range want {
		got[i] = true
	}
	for i, p := range calls {
		switch {
		case p.returned() && p.err != nil:
			t.Errorf("call %d: %v", i, p.err)
		case p.got() != got[i]:
			t.Errorf("call %d has a permit: %v, want %v", i, p.got(), got[i])
		}
	}
}

var errDown = store.ErrUnavailable

const ttl = 30 * time.Second // the default

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
