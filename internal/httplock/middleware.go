// Package httplock is the exclusive middleware of every HTTP framework, but for the framework.
package httplock

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/average"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/httprequest"
	"github.com/lockkeeper/lockkeeper/internal/outage"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

const statusHeader = "Lock-Status"

// Middleware has the requests of a key take turns.
type Middleware struct {
	locker   *lock.Locker
	settings setting.Exclusive
	typical  average.Duration // how long handlers have a lock
}

// New returns a middleware with a locker that is not nil.
func New(l *lock.Locker, s setting.Exclusive) *Middleware {
	return &Middleware{locker: l, settings: s}
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

// Serve answers a request, whose response has the header h: it runs it when it has the lock, or
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
	lease, cancel, err := m.acquire(r.Context(), key)
	defer cancel()
	switch {
	case err == nil:
		m.run(r, x, lease)
	case errors.Is(err, outage.ErrUnavailable) && m.settings.RunUnprotected && r.Context().Err() == nil:
		x.Report(err)
		h.Set(statusHeader, "bypassed")
		x.Run(r)
	default:
		deny(h, x, m.denial(r.Context(), err))
	}
}

// acquire returns the lease of a request's key, and what to call when the request is answered.
//
// It asks without waiting first. So the time that a request may wait is spent in the queue alone,
// and does not cut short the store's own deadline: a store that is silent is an outage, and not a
// lock that others have.
func (m *Middleware) acquire(request context.Context, key string) (*lock.Lease, context.CancelFunc, error) {
	lease, err := m.locker.TryLock(request, key)
	if m.settings.Wait == 0 || !errors.Is(err, lock.ErrNotAcquired) {
		return lease, func() {}, err
	}

	// The lease's context derives from this one, so it may not have a deadline.
	ctx, cancel := context.WithCancel(request)
	timer := time.AfterFunc(m.settings.Wait, cancel)
	lease, waitErr := m.locker.Lock(ctx, key)
	inTime := timer.Stop()
	switch {
	case waitErr == nil && inTime:
		return lease, cancel, nil
	case waitErr == nil: // its turn came at the moment when the time was up
		_ = lease.Unlock(ctx)
	case ctx.Err() == nil, errors.Is(waitErr, lock.ErrNotAcquired):
		err = waitErr
	}
	return nil, cancel, err
}

// run has the handler answer, and releases the lock, even if the handler panics.
func (m *Middleware) run(r *http.Request, x Exchange, lease *lock.Lease) {
	began := time.Now()
	defer func() {
		m.typical.Add(time.Since(began))
		// Unlock goes on when the client has left; the handler may have called it itself.
		if err := lease.Unlock(r.Context()); err != nil && !errors.Is(err, lock.ErrReleased) {
			x.Report(err)
		}
	}()
	handled := r.WithContext(lease.Context())
	x.Run(handled)
	httprequest.KeepForm(r, handled)
}

func deny(h http.Header, x Exchange, d policy.Denial) {
	httpdenial.SetHeader(h, d)
	x.Deny(d)
}

// denial says what a client is told of an error of the lock.
func (m *Middleware) denial(request context.Context, err error) policy.Denial {
	var held *lock.HeldError
	switch {
	case errors.As(err, &held):
		return policy.Denial{Reason: policy.Locked, RetryAfter: m.retryAfter(held), Err: err}
	case errors.Is(err, lock.ErrInvalidKey):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}
	case errors.Is(err, outage.ErrUnavailable), errors.Is(err, lock.ErrClosed), request.Err() != nil:
		return httpdenial.Unavailable(err)
	}
	return policy.Denial{Reason: policy.InternalError, Err: err}
}

// retryAfter is when the lock may be free. Its lease says little of that: it is long, and a holder
// that lives renews it. So this is what handlers have lately taken, for the one that has the lock
// and each that waits for it. The lease is the upper bound, after which a holder that died is gone.
func (m *Middleware) retryAfter(held *lock.HeldError) time.Duration {
	after := m.typical.Get() * time.Duration(held.Waiting+1)
	if held.Remaining > 0 {
		after = min(after, held.Remaining)
	}
	return max(after, time.Second)
}
