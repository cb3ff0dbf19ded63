package rpctest

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// patience is how long a row waits for an event.
const patience = 10 * time.Second

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

// Service is a server whose methods are set by rows.
type Service struct {
	runs  atomic.Int64
	make  func(context.Context, *Request) (*Thing, error)
	watch func(*Request, ServerStream) error
	talk  func(ServerStream) error
}

// Make is the handler of unary calls.
func (s *Service) Make(ctx context.Context, r *Request) (*Thing, error) {
	n := s.runs.Add(1)
	if s.make != nil {
		return s.make(ctx, r)
	}
	return &Thing{ID: r.ID, Text: "run " + strconv.FormatInt(n, 10)}, nil
}

// Get is the handler of unary calls without side effects.
func (s *Service) Get() { s.runs.Add(1) }

// Watch is the handler of streams of answers.
func (s *Service) Watch(r *Request, stream ServerStream) error {
	s.runs.Add(1)
	if s.watch != nil {
		return s.watch(r, stream)
	}
	return stream.Send(&Thing{ID: r.ID})
}

// Talk is the handler of streams of requests and answers.
func (s *Service) Talk(stream ServerStream) error {
	s.runs.Add(1)
	if s.talk != nil {
		return s.talk(stream)
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has closed its side
		}
		if err := stream.Send(&Thing{ID: r.ID}); err != nil {
			return err
		}
	}
}

func (s *Service) ran(t *rig, want int64) {
	t.Helper()
	if got := s.runs.Load(); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

// serve starts a server behind interceptors, and returns a client of it.
func serve(t *rig, s *Service, chain ...Interceptor) Client {
	t.Helper()
	return t.Dial(t.T, t.Listen(t.T, s, chain...))
}

// with returns the context of a call with metadata: name, value, name, value.
func with(t *rig, pairs ...string) context.Context { return t.Sending(t.Context(), pairs...) }

// NewLimiter returns a limiter called "api".
func NewLimiter(t testing.TB, st store.Buckets, plan tokenbucket.Plan) *tokenbucket.Limiter {
	t.Helper()
	return must(tokenbucket.New(st, "api", plan))
}

// NewGuard returns a guard called "orders".
func NewGuard(t testing.TB, st store.Records, opts ...guard.Option) *guard.Guard {
	t.Helper()
	return must(guard.New(st, "orders", opts...))
}

// NewLocker returns a locker called "carts", which is closed when the test ends.
func NewLocker(t testing.TB, st store.Leases) *lock.Locker {
	t.Helper()
	l := must(lock.New(st, "carts"))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// NewSemaphore returns a semaphore called "reports", which is closed when the test ends.
func NewSemaphore(t testing.TB, st store.Leases, capacity int, opts ...semaphore.Option) *semaphore.Semaphore {
	t.Helper()
	s := must(semaphore.New(st, "reports", capacity, opts...))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// is checks an answer.
func is(t *rig, got *Thing, err error, text string) {
	t.Helper()
	if err != nil || got.text() != text {
		t.Fatalf("%v, %v; want %q", got, err, text)
	}
}

// secret is in the errors of key functions, and must not be in answers.
const secret = "do-not-reveal"

var errKey = errors.New(secret)

// failure returns an error with a code.
func failure(t *rig, code Code, text string) error { return t.Failure(code, text, Details{}) }

// denies checks that an error is a denial, with the details of its reason.
func denies(t *rig, err error, reason policy.Reason) {
	t.Helper()
	_ = denial(t, err, reason)
}

// denial returns the details of an error that denies has checked.
func denial(t *rig, err error, reason policy.Reason) Details {
	t.Helper()
	return Denied(t, t, err, reason)
}

// Denied checks that an error is a denial, with the details of its reason, and returns these.
func Denied(t testing.TB, f Framework, err error, reason policy.Reason) Details {
	t.Helper()
	want := map[policy.Reason]Code{
		policy.QuotaExceeded: ResourceExhausted, policy.KeyQuotaExceeded: ResourceExhausted,
		policy.AbnormalUsage: ResourceExhausted, policy.TooManyAtOnce: ResourceExhausted,
		policy.Locked: Aborted, policy.InFlight: Aborted,
		policy.KeyMissing: InvalidArgument, policy.KeyMalformed: InvalidArgument,
		policy.KeyReused: InvalidArgument, policy.StreamRefused: InvalidArgument,
		policy.BodyUnreadable: InvalidArgument,
		policy.FenceMissing:   InvalidArgument, policy.StaleFence: FailedPrecondition,
		policy.ResponseNotRetained: FailedPrecondition, policy.OutcomeUnknown: FailedPrecondition,
		policy.ReducedCapacity: Unavailable, policy.InternalError: Internal,
	}[reason]
	if err == nil || f.CodeOf(err) != want {
		t.Fatalf("%v, want code %d for %s", err, want, reason)
	}
	d := f.DetailsOf(err)
	if d.Domain != f.Traits().Domain || d.Reason != strings.ToUpper(strings.ReplaceAll(string(reason), "-", "_")) {
		t.Fatalf("%v has ErrorInfo %s of %s, want %s", err, d.Reason, d.Domain, reason)
	}
	retries := slices.Contains([]Code{ResourceExhausted, Aborted, Unavailable}, want)
	if (d.RetryAfter != nil) != retries || retries && d.retryAfter() <= 0 {
		t.Errorf("%v has RetryInfo %v", err, d.RetryAfter)
	}
	switch reason {
	case policy.KeyMissing, policy.KeyMalformed, policy.StreamRefused, policy.FenceMissing:
		if len(d.Fields) != 1 || d.Fields[0] == "" {
			t.Errorf("%v has BadRequest %q", err, d.Fields)
		}
	}
	if strings.Contains(d.All, secret) {
		t.Errorf("the client gets %v", d.All)
	}
	return d
}

// gate is a handler that reports when it runs, and blocks until it is released.
type gate struct{ entered, leave chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 100), make(chan struct{}, 100)} }

func (g gate) make(_ context.Context, r *Request) (*Thing, error) {
	g.pass()
	return &Thing{ID: r.ID, Text: "done"}, nil
}

func (g gate) pass() {
	g.entered <- struct{}{}
	select {
	case <-g.leave:
	case <-time.After(6 * patience): // longer than a row, which may make many calls during that time
	}
}

func (g gate) runs(t *rig) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(patience):
		t.Fatal("the handler does not run")
	}
}

func (g gate) idle(t *rig) {
	t.Helper()
	select {
	case <-g.entered:
		t.Fatal("the handler runs")
	default:
	}
}

func (g gate) let() { g.leave <- struct{}{} }

// answer is the result of a call.
type answer struct {
	thing *Thing
	err   error
}

// making calls Make in the background.
func making(ctx context.Context, t *rig, client Client, r *Request) <-chan answer {
	answers := make(chan answer, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		thing, err := client.Make(ctx, r)
		answers <- answer{thing, err}
	}()
	t.Cleanup(func() { <-done })
	return answers
}

// result waits for the result of a call.
func result(t *rig, answers <-chan answer) answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
		return answer{}
	}
}
