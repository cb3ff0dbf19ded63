package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A breaker opens when a node has failed several calls in a row, or has said that it cannot work. Calls
// then fail at once, until a probe succeeds.

const (
	// tripAfter is how many failures in a row open the breaker.
	tripAfter = 5
	// forgetAfter is how often failures are forgotten while the breaker is closed, since the success of a call
	// that only reads does not undo them.
	forgetAfter = time.Minute
	// probeEvery is how often a node whose breaker is open is probed.
	probeEvery = 250 * time.Millisecond
)

var (
	errDown    = fmt.Errorf("%w: redis is taken to be down", store.ErrUnavailable)
	errIgnored = errors.New("says nothing of the server")
)

// probeText writes, as most steps do: a server that answers PING may still be a replica, have too few
// replicas, or be paused for writes.
const probeText = "return redis.call('SET', KEYS[1], '', 'PX', 1000)"

func (n *node) newBreaker() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "redis",
		MaxRequests: 1,
		Timeout:     probeEvery,
		Interval:    forgetAfter,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter || n.trip.Load() },
		IsExcluded:  func(err error) bool { return errors.Is(err, errIgnored) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			log := n.store.config.logger
			switch {
			case from == gobreaker.StateClosed && to == gobreaker.StateOpen:
				down := n.downError()
				log.Warn("lockkeeper: redis is down; calls fail at once until it replies",
					"cause", string(store.CauseOf(down)), "address", n.address, "error", down)
				n.store.start(n.probe)
			case to == gobreaker.StateClosed:
				log.Info("lockkeeper: redis replies again", "address", n.address)
			}
		},
	})
}

// isDown reports whether the breaker is not closed: only the probe may pass one that is half open, so that
// no caller waits to find out.
func (n *node) isDown() bool { return n.breaker.State() != gobreaker.StateClosed }

func (n *node) downError() error {
	if down := n.down.Load(); down != nil {
		return *down
	}
	return errDown
}

// failed records the failure that calls report while the breaker is open. It may change meanwhile: a server
// that was gone may come back and refuse the password.
func (n *node) failed(err error) {
	explained := explain(err, false)
	down := fmt.Errorf("%w: %w", errDown, store.WithCauseOf(explained, err.Error()))
	n.down.Store(&down)
	n.store.logFault(context.Background(), n, explained)
}

// report tells the breaker what the result of a call means for it. A call that is tried though the breaker is open
// has no say in it.
type report struct {
	node *node
	done func(error)
}

func (r report) is(err error) {
	n := r.node
	failed := err != nil && !errors.Is(err, errIgnored)
	if failed {
		n.store.nodes.refresh()
	}
	if r.done == nil {
		return
	}
	switch {
	case err == nil:
		if n.missed.Load() > 0 {
			n.missed.Store(0)
		}
		if n.trip.Load() {
			n.trip.Store(false)
		}
	case failed:
		n.failed(err)
		if isDecisive(err) {
			n.trip.Store(true)
		}
	}
	r.done(err)
}

// isDecisive reports whether one such error is enough to know that the node cannot work: it is an answer,
// where silence may have many reasons.
func isDecisive(err error) bool {
	return redisfault.IsUnreachable(err) || redisfault.IsUnauthenticated(err) || redisfault.RefusesWrites(err)
}

// verdict says what an error means for the breaker: nil if the server works, errIgnored if it may.
func verdict(caller context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case caller.Err() != nil, errors.Is(err, redis.ErrPoolTimeout): // the caller left, or others had all connections
		return errIgnored
	case redisfault.IsUnauthenticated(err): // no call works, and each costs a connection
		return err
	case isReply(err) && !didNotRun(err), errors.Is(err, errOddReply):
		return nil
	case errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnconfirmed): // the store's own refusal
		return errIgnored
	}
	return err
}

// tell reports the result of a call. Silence counts only if nobody was answered after the request was
// written: a server that answers others is busy, not down. It does not count for a call that had no
// connection in time, or that had little time left when it had one, since others may have had them all.
func (n *node) tell(caller context.Context, c *callContext, r report, err error) {
	means := verdict(caller, err)
	late := c.Err() != nil
	if (err == nil || isReply(err)) && !n.answered.Load() {
		n.answered.Store(true)
	}
	switch {
	case means == nil:
		if c.writes {
			n.hear()
		} else if n.client != nil { // a server that can only be read is down for writers
			means = errIgnored
		}
	case errors.Is(means, errIgnored), isReply(err), redisfault.IsUnreachable(err):
	case late && (c.sent.silence() < n.store.config.timeout/2 || c.large), n.answersAfter(c.sent.since()):
		means = errIgnored
	}
	if late && r.done != nil && means != nil && !errors.Is(means, errIgnored) &&
		n.store.deadlines.silent(n, n.store.config.timeout/2) >= tripAfter-1 {
		n.trip.Store(true) // the others will fail in a moment
	}
	r.is(means)
	if errors.Is(means, errIgnored) && late && !isReply(err) {
		n.suspect()
	}
}

func (n *node) hear() { n.heard.Store(n.store.clock()) }

// answersAfter reports whether the node has answered a step that may write a while after then: what it had answered
// before may have been on its way still.
func (n *node) answersAfter(then time.Time) bool {
	return !then.IsZero() && n.heard.Load() > int64(then.Add(n.store.config.timeout/10).Sub(n.store.made))
}

// suspect records that a call ended before anything was heard of the server: its caller has left, or it had
// no connection in time, as when very many call at once. That says nothing of the server. But when it
// happens several times in a row, and the server answers nobody else, it is probed.
func (n *node) suspect() {
	n.store.nodes.refresh()
	if n.missed.Add(1) < tripAfter || !n.asking.CompareAndSwap(false, true) {
		return
	}
	started := n.store.start(func() {
		defer n.asking.Store(false)
		done, err := n.breaker.Allow()
		if err != nil {
			return
		}
		err, stopped := n.ask()
		if stopped {
			done(errIgnored)
			return
		}
		if err != nil && !errors.Is(err, errIgnored) {
			n.trip.Store(true) // there were enough of them
		}
		report{n, done}.is(err)
	})
	if !started {
		n.asking.Store(false)
	}
}

// probe probes a node whose breaker is open, until it works, is no master any more, or the store is closed.
func (n *node) probe() {
	tick := time.NewTicker(probeEvery / 2)
	defer tick.Stop()
	for n.isDown() && !n.gone.Load() {
		select {
		case <-n.store.stop:
			return
		case <-tick.C:
		}
		done, err := n.breaker.Allow()
		if err != nil {
			continue // not half-open yet
		}
		err, stopped := n.ask()
		if stopped { // the client may wait for longer; Close does not
			return
		}
		report{n, done}.is(err)
	}
}

// ask probes the node, and returns what the answer means for its breaker. It reports whether the store was
// closed before.
func (n *node) ask() (err error, stopped bool) {
	answer := make(chan error, 1)
	go func() { answer <- n.write() }()
	select {
	case err := <-answer:
		return err, false
	case <-n.store.stop:
		return nil, true
	}
}

// unhurried is the deadline of work in the background, which no caller waits for.
func (s *Store) unhurried() time.Duration { return max(time.Second, 4*s.config.timeout) }

// write runs the probe. A connection may take longer to make than a caller would wait for it; the reply may not.
func (n *node) write() error {
	s, began := n.store, time.Now()
	if n.client == nil { // the node that replies with the map of the Cluster works
		return verdict(context.Background(), s.nodes.ask(s.life, s.unhurried()))
	}
	c := s.deadlines.context(context.Background(), n, s.unhurried(), s.config.timeout)
	defer s.deadlines.giveBack(c)
	err := n.client.Process(c, onceCmd{newEval(c, byText, []byte(probeText), []string{n.probed}, nil)})
	if err != nil && c.Err() != nil && !isReply(err) {
		err = tooLate(c, &c.sent)
	}
	if s.nodes.cluster != nil && isReply(err) && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
		err = nil // it works, and the slot of the probe is elsewhere by now
	}
	switch err = verdict(context.Background(), err); {
	case err == nil:
		n.hear()
	case !isReply(err) && n.answersAfter(began):
		return errIgnored
	}
	return err
}

// warm makes a connection in the background, for later calls: a server may be so far away that no caller
// waits for as long as that takes. It finishes those, too, that the client has dialed for callers who had left.
func (n *node) warm() {
	s, conns := n.store, 1
	if n.isDown() {
		return
	}
	if n.client != nil {
		conns += int(n.client.PoolStats().IdleConns)
	}
	for range conns {
		if n.warming.Add(1) > int64(s.mostTakers()) {
			n.warming.Add(-1)
			return
		}
		go func() { // Close does not wait for it: the client notices the end of a context late
			defer n.warming.Add(-1)
			c := s.deadlines.context(s.life, n, s.unhurried(), s.config.timeout)
			defer s.deadlines.giveBack(c)
			if n.client != nil {
				_ = n.client.Ping(c).Err()
			} else {
				_ = s.nodes.ask(c, s.unhurried())
			}
		}()
	}
}
