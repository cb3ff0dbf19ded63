package middleware

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/ewma"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Ask is what a request asks of a rate limit that is more than a token. It is of one request.
type Ask struct {
	// Settles reserves tokens, which are settled when the request has been answered: a token of
	// every limit if Costs is nil.
	Settles bool
	Costs   func() tokenbucket.Cost
	// Report is called with errors that do not change the answer.
	Report func(error)

	reservation *tokenbucket.Reservation // nil if there is none
	denied      *tokenbucket.Reservation // nil unless it was denied
	began       time.Time                // of an attempt
	attempts    *ewma.Duration           // how long attempts take, or nil
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

// Reserved reports whether the request has a reservation, which is to be settled. It has none if it
// passes without the store, or although it would have been denied.
func (a *Ask) Reserved() bool { return a.reservation != nil }

// Context returns the context in which a handler finds the reservation of costs. One of a token is
// nothing to report of, and would hide that of an outer limit.
func (a *Ask) Context(ctx context.Context) context.Context {
	return tokenbucket.NewContext(ctx, a.reservation)
}

// Settle is called when the request has been answered, also if its handler panics. If its answer is
// not charged, the tokens are given back that were not reported as used.
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

// held returns when the key of a denied request can come back, if it is held, or is now. Of
// requests that are denied together, one holds it, and the others do not know for how long. A
// client cannot escape that by leaving. One that is denied because of attempts that have not ended
// has exceeded nothing yet.
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
