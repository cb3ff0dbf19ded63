package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
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
// caller does. A client that keeps deadlines does not, and then a caller's context that is canceled, and has
// no deadline, may end the call at the store's only.
func call[T any](ctx context.Context, s *Store, op operation, u urgency, f func(context.Context) (T, error)) (T, error) {
	told := s.telemetry.Begin(ctx, string(op))
	value, err := callUntold(ctx, s, u, f)
	told.End(ctx, err)
	if isDamage(err) {
		s.damage.Found(ctx)
	}
	return value, err
}

func callUntold[T any](ctx context.Context, s *Store, u urgency, f func(context.Context) (T, error)) (T, error) {
	if s.keepsDeadlines {
		return callHere(ctx, s, u, f)
	}
	return callElsewhere(ctx, s, u, f)
}

// admit lets a call pass, or returns why not. It says where to tell what comes of the call.
func (s *Store) admit(ctx context.Context, u urgency) (outcome, error) {
	report := outcome{store: s}
	if s.closed.Load() {
		return report, outage.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return report, err
	}
	if u == ordinary {
		// Only the probe may pass a breaker that is not closed: no caller waits to find out.
		if s.breaker.State() != gobreaker.StateClosed {
			return report, errDown
		}
		done, err := s.breaker.Allow()
		if err != nil {
			return report, errDown
		}
		report.done = done
	}
	if s.orphans[u].Load() >= s.maxOrphans[u] {
		report.is(errIgnored)
		s.suspect()
		return report, errStuck
	}
	return report, nil
}

// callHere runs f, whose client keeps deadlines, in the goroutine of its caller.
func callHere[T any](ctx context.Context, s *Store, u urgency, f func(context.Context) (T, error)) (value T, err error) {
	report, err := s.admit(ctx, u)
	if err != nil {
		return value, err
	}
	c := s.deadlines.context(ctx, s.config.timeout)
	value, err = f(c)
	s.deadlines.giveBack(c)
	s.tell(ctx, c, report, err, &c.sent)
	if err != nil && c.Err() != nil && !isReply(err) {
		err = fmt.Errorf("no reply in time: %w", context.Cause(c))
	}
	return value, explain(err, c.sent.open())
}

// callElsewhere runs f in a goroutine of its own.
func callElsewhere[T any](ctx context.Context, s *Store, u urgency, f func(context.Context) (T, error)) (T, error) {
	var none T
	report, err := s.admit(ctx, u)
	if err != nil {
		return none, err
	}
	orphans := &s.orphans[u]
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
		s.tell(ctx, bounded, report, a.err, sent)
		return a.value, explain(a.err, sent.open())
	case <-bounded.Done():
	}
	select {
	case a := <-answers: // both at once: the answer counts
		s.tell(ctx, bounded, report, a.err, sent)
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
			means := afterwards(a.err)
			report.is(means)
			if errors.Is(means, errIgnored) {
				s.suspect()
			}
		}
	}()
	open := sent.giveUp()
	if !left {
		s.tell(ctx, bounded, report, late, sent)
	}
	return none, explain(late, open)
}

// verdict says what an error means for the breaker: nil if the server works, errIgnored if it may.
func verdict(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil, errors.Is(err, redis.ErrPoolTimeout): // the caller left, or others had all connections
		return errIgnored
	case isReply(err) && !didNotRun(err), errors.Is(err, errOddReply):
		return nil
	case errors.Is(err, outage.ErrUnavailable) && !errors.Is(err, outage.ErrUnconfirmed): // the store's own refusal
		return errIgnored
	}
	return err
}

// tell tells the breaker what came of a call whose context is over, or not. One that had no connection in
// time, or had it late, since others had them all or none could be made, says no more of the server than
// one whose caller has left.
func (s *Store) tell(caller, c context.Context, report outcome, err error, sent *wire) {
	means := verdict(caller, err)
	if means != nil && c.Err() != nil && sent.silence() < s.config.timeout/2 {
		means = errIgnored
	}
	report.is(means)
	if errors.Is(means, errIgnored) && c.Err() != nil && !isReply(err) {
		s.suspect()
	}
}

// afterwards is the verdict on a call whose caller left before it ended.
func afterwards(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errGaveUp) {
		return errIgnored // cut short for the caller's sake
	}
	return verdict(context.Background(), err)
}

// outcome is where a call tells what it means for the breaker. One that does not ask the breaker does not
// tell it either.
type outcome struct {
	store *Store
	done  func(error)
}

func (o outcome) is(err error) {
	if o.done == nil {
		return
	}
	if err == nil && o.store.departed.Load() > 0 {
		o.store.departed.Store(0) // the server is not under suspicion any more
	}
	o.done(err)
}

// suspect notes that a call is over before anything was heard of the server: its caller has left, or it had
// no connection in time, as when very many call at once. That says nothing of the server. But when it
// happens several times in a row, the store asks it.
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
		answer := s.ask()
		late := time.NewTimer(s.config.timeout)
		defer late.Stop()
		heard := true
		select {
		case <-s.stop:
			done(errIgnored)
			return
		case err = <-answer:
		case <-late.C:
			heard, err = false, context.DeadlineExceeded
		}
		s.deaf.Store(err != nil && !errors.Is(err, errIgnored))
		outcome{s, done}.is(err)
		if !heard { // the client waits for longer, and need not do so twice
			select {
			case <-s.stop:
			case <-answer: //nolint:errcheck // it does not matter any more
			}
		}
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
		select {
		case <-s.stop: // the client may wait for longer; Close does not
			return
		case err = <-s.ask():
		}
		s.deaf.Store(false)
		done(err)
	}
}

// ask sends a PING, and returns where to hear what its answer says of the server.
func (s *Store) ask() <-chan error {
	answer := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), s.config.timeout)
		defer cancel()
		answer <- verdict(context.Background(), s.client.Ping(ctx).Err())
	}()
	return answer
}
