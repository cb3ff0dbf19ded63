package middleware

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/ewma"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Ask is the request for more than one token of a rate limit. Each request has its own.
type Ask struct {
	// Settles reserves tokens, which are settled when the request has been answered. If Costs is nil,
	// that is one token of every limit.
	Settles bool
	Costs   func() tokenbucket.Cost
	// Report is called with errors that do not change the answer.
	Report func(error)

	reservation *tokenbucket.Reservation // nil if there is none
	denied      *tokenbucket.Reservation // a denied reservation, or nil
	began       time.Time                // of an attempt
	attempts    *ewma.Duration           // their duration, or nil
}

// Asks reports whether requests behind these settings ask for more than a token.
func Asks(s *setting.Settings) bool { return Settles(s) || s.Hold != nil }

// Settles reports whether requests behind these settings are settled.
func Settles(s *setting.Settings) bool { return s.Costs != nil || s.Charged != nil }

func (a *Ask) reserve(ctx context.Context, m *RateLimit, key string, decision *tokenbucket.Decision) (err error) {
	var few [1]tokenbucket.ReserveOption
	opts := few[:0]
	if m.attempts != nil {
		a.attempts, a.began = m.attempts, time.Now()
		opts = append(opts, tokenbucket.AsAttempt(m.hold))
	}
	var r *tokenbucket.Reservation
	if a.Costs != nil {
		r, err = m.Limiter.Reserve(ctx, key, a.Costs(), opts...)
	} else {
		r, err = m.Limiter.ReserveN(ctx, key, 1, opts...)
	}
	if err != nil {
		return err
	}
	*decision = r.Decision
	if r.Allowed {
		a.reservation = r
	} else {
		a.denied = r
	}
	return nil
}

// Reserved reports whether the request has a reservation to settle. It has none if it passes
// without the store, or if a shadow passes it although it was denied.
func (a *Ask) Reserved() bool { return a.reservation != nil }

// Context returns the context in which a handler finds the reservation of costs. A reservation of
// one token is not passed on: the handler has nothing to report to it, and it would hide an outer
// limit's.
func (a *Ask) Context(ctx context.Context) context.Context {
	return tokenbucket.NewContext(ctx, a.reservation)
}

// Settle is called when the request has been answered, also if its handler panics. If its answer is
// not charged, the tokens that were not reported as used are given back.
func (a *Ask) Settle(ctx context.Context, charged bool) {
	settle := a.reservation.Settle
	if !charged {
		settle = a.reservation.Cancel
	}
	if err := settle(ctx); err != nil {
		a.Report(err)
	}
	if a.attempts != nil {
		a.attempts.Add(time.Since(a.began))
	}
}

// held returns when the key of a denied request can come back, and whether the key is held, by an
// earlier hold or by this call. Of requests that are denied together, one holds the key, and the
// others do not learn for how long. A client cannot escape the hold by leaving. A request that is
// denied because of attempts in flight has exceeded nothing yet.
func (m *RateLimit) held(ctx context.Context, key string, ask *Ask, decision *tokenbucket.Decision) (time.Duration, bool) {
	if decision.Held > 0 || m.hold == nil {
		return decision.RetryAfter, decision.Held > 0
	}
	ctx = context.WithoutCancel(ctx)
	var d time.Duration
	var err error
	if decision.Pending {
		d, err = ask.denied.HoldLater(ctx)
	} else {
		d, err = m.Limiter.HoldAgain(ctx, key, *m.hold)
	}
	switch {
	case err != nil:
		ask.Report(err)
		return 0, false
	case decision.Pending && d == 0:
		return 0, false
	}
	decision.Held, decision.Pending = d, false
	return max(decision.RetryAfter, d), true
}
