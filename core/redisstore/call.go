package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/lockkeeper/lockkeeper/internal/outage"
)

const (
	// tripAfter failures in a row the store is taken to be down.
	tripAfter = 5
	// probeEvery is how often a store that is down is asked whether it is back.
	probeEvery = 250 * time.Millisecond
)

var (
	errDown    = fmt.Errorf("%w: redis has not answered lately", outage.ErrUnavailable)
	errStuck   = fmt.Errorf("%w: redis: too many connections wait for replies that nobody waits for", outage.ErrUnavailable)
	errIgnored = errors.New("says nothing of the server")
)

// urgency says whether a call is made though the store is taken to be down.
type urgency int

const (
	ordinary urgency = iota
	// finishing calls end what was begun: they are always tried.
	finishing
)

// call runs f, which talks to the server, and returns when it has, or at the store's own deadline,
// or at ctx's. What f does then goes on by itself: the client may wait for a reply longer than the
// caller does.
func call[T any](ctx context.Context, s *Store, op operation, u urgency, f func(context.Context) (T, error)) (T, error) {
	told := s.telemetry.Begin(ctx, string(op))
	value, err := callUntold(ctx, s, u, f)
	told.End(ctx, err)
	return value, err
}

func callUntold[T any](ctx context.Context, s *Store, u urgency, f func(context.Context) (T, error)) (T, error) {
	var none T
	if s.closed.Load() {
		return none, outage.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	report := func(error) {}
	if u == ordinary {
		// Only the probe may pass a breaker that is not closed: no caller waits to find out.
		if s.breaker.State() != gobreaker.StateClosed {
			return none, errDown
		}
		done, err := s.breaker.Allow()
		if err != nil {
			return none, errDown
		}
		report = s.unsuspecting(done)
	}
	orphans := &s.orphans[u]
	if orphans.Load() >= s.maxOrphans[u] {
		report(errIgnored)
		return none, errStuck
	}
	if s.keepsDeadlines && ctx.Done() == nil { // nobody can leave
		c := s.deadlines.context(ctx, s.config.timeout)
		value, err := f(c)
		s.deadlines.end(&c.deadline)
		report(verdict(ctx, err))
		return value, explain(err, c.sent.open())
	}

	type answer struct {
		value T
		err   error
	}
	sent := new(wire)
	bounded, cancel := context.WithTimeout(context.WithValue(ctx, wireKey{}, sent), s.config.timeout)
	answers := make(chan answer, 1)
	go func() {
		defer cancel()
		value, err := f(bounded)
		answers <- answer{value, err}
	}()

	select {
	case a := <-answers:
		report(verdict(ctx, a.err))
		return a.value, explain(a.err, sent.open())
	case <-bounded.Done():
	}
	select {
	case a := <-answers: // both at once: the answer counts
		report(verdict(ctx, a.err))
		return a.value, explain(a.err, sent.open())
	default:
	}
	late := fmt.Errorf("no reply in time: %w", context.Cause(bounded))
	left := ctx.Err() != nil
	orphans.Add(1)
	go func() {
		a := <-answers
		orphans.Add(-1)
		if left { // what became of the call tells more than that the caller had no time for it
			outcome := afterwards(a.err)
			report(outcome)
			if errors.Is(outcome, errIgnored) {
				s.suspect()
			}
		}
	}()
	if !left {
		report(late)
	}
	return none, explain(late, sent.giveUp())
}

// verdict says what an error means for the breaker: nil if the server works, errIgnored if it may.
func verdict(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil: // the caller left
		return errIgnored
	case isReply(err) && !didNotRun(err), errors.Is(err, errOddReply):
		return nil
	case errors.Is(err, outage.ErrUnavailable) && !errors.Is(err, outage.ErrUnconfirmed): // the store's own refusal
		return errIgnored
	}
	return err
}

// afterwards is the verdict on a call whose caller left before it ended.
func afterwards(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errGaveUp) {
		return errIgnored // cut short for the caller's sake
	}
	return verdict(context.Background(), err)
}

// unsuspecting has a call that succeeds clear the server of suspicion.
func (s *Store) unsuspecting(done func(error)) func(error) {
	return func(err error) {
		if err == nil && s.departed.Load() > 0 {
			s.departed.Store(0)
		}
		done(err)
	}
}

// suspect notes that a caller has left before anything was heard of the server. When several in a row
// have, it asks the server itself: callers in a hurry would never find out that it is down.
func (s *Store) suspect() {
	if s.departed.Add(1) < tripAfter || !s.asking.CompareAndSwap(false, true) {
		return
	}
	s.start(func() {
		defer s.asking.Store(false)
		done, err := s.breaker.Allow()
		if err != nil {
			return
		}
		asked, err := s.ask()
		if !asked {
			done(errIgnored)
			return
		}
		s.deaf.Store(err != nil)
		s.unsuspecting(done)(err)
	})
}

func (s *Store) newBreaker() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "redis",
		MaxRequests: 1,
		Timeout:     probeEvery,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter || s.deaf.Load() },
		IsExcluded:  func(err error) bool { return errors.Is(err, errIgnored) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case from == gobreaker.StateClosed && to == gobreaker.StateOpen:
				s.config.logger.Warn("lockkeeper: redis does not answer; failing fast until it does")
				s.start(s.probe)
			case to == gobreaker.StateClosed:
				s.config.logger.Info("lockkeeper: redis answers again")
			}
		},
	})
}

// probe asks a server that is down whether it is back, until it answers or the store is closed.
func (s *Store) probe() {
	tick := time.NewTicker(probeEvery / 2)
	defer tick.Stop()
	for s.breaker.State() != gobreaker.StateClosed {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		done, err := s.breaker.Allow()
		if err != nil {
			continue // not half-open yet
		}
		asked, err := s.ask()
		if !asked {
			return
		}
		s.deaf.Store(false)
		done(err)
	}
}

// ask sends a PING, and returns what that says of the server. It has not asked if the store is closed
// meanwhile.
func (s *Store) ask() (asked bool, err error) {
	answer := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.config.timeout)
		defer cancel()
		answer <- s.client.Ping(ctx).Err()
	}()
	select {
	case <-s.stop: // the client may wait for longer; Close does not
		return false, nil
	case err := <-answer:
		return true, verdict(context.Background(), err)
	}
}
