// Package httpsemaphore is the concurrency middleware of every HTTP framework, but for the
// framework.
package httpsemaphore

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/average"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/httprequest"
	"github.com/lockkeeper/lockkeeper/internal/outage"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

const (
	statusHeader = "Concurrency-Status"
	// maxRetryAfter bounds what is made of an average and a long queue: nobody knows more.
	maxRetryAfter = time.Hour
)

// Middleware has at most as many requests of a key run at a time as a semaphore has room for.
type Middleware struct {
	semaphore *semaphore.Semaphore
	settings  setting.Concurrency
	typical   average.Duration // how long handlers have a permit
}

// New returns a middleware with a semaphore that is not nil. The error is that of the semaphore's
// With.
func New(s *semaphore.Semaphore, settings setting.Concurrency) (*Middleware, error) {
	if settings.PerInstance {
		s = s.PerInstance()
	}
	s, err := s.With(semaphore.WithMaxWaiting(settings.MaxWaiting))
	if err != nil {
		return nil, err
	}
	return &Middleware{semaphore: s, settings: settings}, nil
}

// Exchange is a request and its answer in a framework's hands.
type Exchange interface {
	// Key returns the request's key.
	Key() (string, error)
	// Run has the handler answer the request.
	Run(r *http.Request)
	// Deny ends the exchange with a denial.
	Deny(policy.Denial)
	// Report tells of an error that does not change the answer.
	Report(error)
}

// Serve answers a request, whose response has the header h: it runs it when it has a permit, or
// denies it.
func (m *Middleware) Serve(h http.Header, r *http.Request, x Exchange) {
	key, err := x.Key()
	if err == nil && key == "" {
		err = policy.ErrNoKey
	}
	if err != nil {
		deny(h, x, httpdenial.NoKey(err))
		return
	}
	permit, cancel, err := m.acquire(r.Context(), key)
	defer cancel()
	switch {
	case err == nil:
		m.run(r, x, permit)
	case errors.Is(err, outage.ErrUnavailable) && m.settings.FailOpen && r.Context().Err() == nil:
		x.Report(err)
		h.Set(statusHeader, "bypassed")
		x.Run(r)
	default:
		deny(h, x, m.denial(r.Context(), err))
	}
}

// acquire returns a permit of a request's key, and what to call when the request is answered.
//
// It asks without waiting first. So the time that a request may wait is spent in the queue alone,
// and does not cut short the store's own deadline: a store that is silent is an outage, and not a
// semaphore that is full.
func (m *Middleware) acquire(request context.Context, key string) (*semaphore.Permit, context.CancelFunc, error) {
	permit, err := m.semaphore.TryAcquire(request, key)
	if m.settings.Wait == 0 || !errors.Is(err, semaphore.ErrNotAcquired) {
		return permit, func() {}, err
	}

	// The permit's context derives from this one, so it may not have a deadline.
	ctx, cancel := context.WithCancel(request)
	timer := time.AfterFunc(m.settings.Wait, cancel)
	permit, waitErr := m.semaphore.Acquire(ctx, key)
	inTime := timer.Stop()
	switch {
	case waitErr == nil && inTime:
		return permit, cancel, nil
	case waitErr == nil: // its turn came at the moment when the time was up
		permit.ReleaseSoon()
	case ctx.Err() == nil, errors.Is(waitErr, semaphore.ErrNotAcquired):
		err = waitErr
	}
	return nil, cancel, err
}

// run has the handler answer, and gives the permit back, even if the handler panics. The answer does
// not wait for the store to hear of it.
func (m *Middleware) run(r *http.Request, x Exchange, permit *semaphore.Permit) {
	began := time.Now()
	ctx := permit.Context()
	defer func() {
		m.typical.Add(time.Since(began))
		if err := overdue(ctx); err != nil {
			x.Report(err)
		}
		permit.ReleaseSoon() // the handler may have released it itself
	}()
	handled := r.WithContext(ctx)
	x.Run(handled)
	httprequest.KeepForm(r, handled)
}

// overdue is why others may have had the permit's place while the handler ran; nil if they had not.
func overdue(permit context.Context) error {
	if permit.Err() == nil {
		return nil
	}
	cause := context.Cause(permit)
	if errors.Is(cause, semaphore.ErrLost) || errors.Is(cause, semaphore.ErrExpired) {
		return cause
	}
	return nil
}

func deny(h http.Header, x Exchange, d policy.Denial) {
	httpdenial.SetHeader(h, d)
	x.Deny(d)
}

// denial says what a client is told of an error of the semaphore.
func (m *Middleware) denial(request context.Context, err error) policy.Denial {
	var busy *semaphore.BusyError
	switch {
	case errors.As(err, &busy):
		return policy.Denial{Reason: policy.TooManyAtOnce, RetryAfter: m.retryAfter(busy), Err: err}
	case errors.Is(err, semaphore.ErrInvalidKey):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}
	case errors.Is(err, outage.ErrUnavailable), errors.Is(err, semaphore.ErrClosed), request.Err() != nil:
		return httpdenial.Unavailable(err)
	}
	return policy.Denial{Reason: policy.InternalError, Err: err}
}

// retryAfter is when there may be room: those who wait now, and then this one, get it as fast as
// handlers lately gave it back, and as many at a time as there is room for.
func (m *Middleware) retryAfter(busy *semaphore.BusyError) time.Duration {
	rounds := float64(busy.Waiting+1) / float64(max(busy.Capacity, 1))
	after := float64(m.typical.Get()) * rounds
	return time.Duration(min(max(after, float64(time.Second)), float64(maxRetryAfter)))
}
