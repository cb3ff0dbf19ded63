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

// A breaker opens when several calls of a node in a row have failed, or the node has replied that
// it cannot work. Calls then fail at once, until a probe succeeds.

const (
	// tripAfter is how many failures in a row open the breaker.
	tripAfter = 5
	// forgetAfter is how often the count of failures is reset while the breaker is closed, since
	// the success of a call that only reads does not reset it.
	forgetAfter = time.Minute
	// probeEvery is how often a node whose breaker is open is probed.
	probeEvery = 250 * time.Millisecond
)

var (
	errDown    = fmt.Errorf("%w: the circuit breaker of redis is open", store.ErrUnavailable)
	errIgnored = errors.New("no evidence about the server")
)

// probeText writes, as most steps do: a server that replies to PING may still be a replica, have
// too few replicas, or be paused for writes.
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

// isDown reports whether the breaker is not closed: only the probe may pass a half-open one, so
// that no caller has to wait.
func (n *node) isDown() bool { return n.breaker.State() != gobreaker.StateClosed }

func (n *node) downError() error {
	if down := n.down.Load(); down != nil {
		return *down
	}
	return errDown
}

// failed records the failure that calls return while the breaker is open. It may change: a server
// that was unreachable may then refuse the password.
func (n *node) failed(err error) {
	explained := explain(err, false)
	down := fmt.Errorf("%w: %w", errDown, store.WithCauseOf(explained, err.Error()))
	n.down.Store(&down)
	n.store.logFault(context.Background(), n, explained)
}

// report reports the result of a call to the breaker. A call that is tried although the breaker is
// open does not count.
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

// isDecisive reports whether a single such error proves that the node cannot work. A reply or a
// refusal does; a timeout may have many reasons.
func isDecisive(err error) bool {
	return redisfault.IsUnreachable(err) || redisfault.IsUnauthenticated(err) || redisfault.RefusesWrites(err)
}

// verdict returns what an error means for the breaker: nil if the server works, errIgnored if it
// may work.
func verdict(caller context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case caller.Err() != nil, errors.Is(err, redis.ErrPoolTimeout): // canceled by the caller, or no free connection
		return errIgnored
	case redisfault.IsUnauthenticated(err): // all calls fail, and each costs a connection
		return err
	case isReply(err) && !didNotRun(err), errors.Is(err, errOddReply):
		return nil
	case errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnconfirmed): // the store's own refusal
		return errIgnored
	}
	return err
}

// reportResult reports the result of a call. A timeout counts only if no other call got a reply
// after the request was written: a server that replies to others is busy, not down. It does not
// count for a call that got no connection in time, or got it with little time left, since other
// calls may have used them all.
func (n *node) reportResult(caller context.Context, c *callContext, r report, err error) {
	means := verdict(caller, err)
	late := c.Err() != nil
	if (err == nil || isReply(err)) && !n.answered.Load() {
		n.answered.Store(true)
	}
	switch {
	case means == nil:
		if c.writes {
			n.hear()
		} else if n.client != nil { // a server that only serves reads is down for writes
			means = errIgnored
		}
	case errors.Is(means, errIgnored), isReply(err), redisfault.IsUnreachable(err):
	case late && (c.sent.silence() < n.store.config.timeout/2 || c.large), n.repliedSince(c.sent.since()):
		means = errIgnored
	}
	if late && r.done != nil && means != nil && !errors.Is(means, errIgnored) &&
		n.store.deadlines.countSilent(n, n.store.config.timeout/2) >= tripAfter-1 {
		n.trip.Store(true) // the others are about to fail
	}
	r.is(means)
	if errors.Is(means, errIgnored) && late && !isReply(err) {
		n.recordMiss()
	}
}

func (n *node) hear() { n.heard.Store(n.store.clock()) }

// repliedSince reports whether the node has replied to a step that may write some time after then:
// earlier replies may still have been on their way.
func (n *node) repliedSince(then time.Time) bool {
	return !then.IsZero() && n.heard.Load() > int64(then.Add(n.store.config.timeout/10).Sub(n.store.made))
}

// recordMiss records that a call ended without a reply: its caller's context ended, or it got no
// connection in time, as in a burst. That is no evidence about the server. But after several in a
// row without a reply to any other call, the server is probed.
func (n *node) recordMiss() {
	n.store.nodes.refresh()
	if n.missed.Add(1) < tripAfter || !n.probingMisses.CompareAndSwap(false, true) {
		return
	}
	started := n.store.start(func() {
		defer n.probingMisses.Store(false)
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
			n.trip.Store(true) // there were enough misses
		}
		report{n, done}.is(err)
	})
	if !started {
		n.probingMisses.Store(false)
	}
}

// probe probes a node with an open breaker until it works, is no longer a master, or the store is
// closed.
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
		if stopped { // the client may wait longer; Close does not
			return
		}
		report{n, done}.is(err)
	}
}

// ask probes the node once, and returns the verdict for its breaker. stopped reports whether the
// store was closed before.
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

// unhurried is the timeout of background work, which no caller waits for.
func (s *Store) unhurried() time.Duration { return max(time.Second, 4*s.config.timeout) }

// write runs the probe. The connection may take longer than for a caller; the reply may not.
func (n *node) write() error {
	s, began := n.store, time.Now()
	if n.client == nil { // a node that returns the map of the Cluster works
		return verdict(context.Background(), s.nodes.ask(s.life, s.unhurried()))
	}
	c := s.deadlines.context(context.Background(), n, s.unhurried(), s.config.timeout)
	defer s.deadlines.release(c)
	err := n.client.Process(c, onceCmd{newEval(c, byText, []byte(probeText), []string{n.probed}, nil)})
	if err != nil && c.Err() != nil && !isReply(err) {
		err = tooLate(c, &c.sent)
	}
	if s.nodes.cluster != nil && isReply(err) && (redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK")) {
		err = nil // it works, and the slot of the probe has moved
	}
	switch err = verdict(context.Background(), err); {
	case err == nil:
		n.hear()
	case !isReply(err) && n.repliedSince(began):
		return errIgnored
	}
	return err
}

// warm opens a connection in the background, for later calls: a server may be so far away that this
// takes longer than any caller waits. It also completes connections that the client has dialed for
// canceled callers.
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
		go func() { // Close does not wait for it: the client reacts late to the end of a context
			defer n.warming.Add(-1)
			c := s.deadlines.context(s.life, n, s.unhurried(), s.config.timeout)
			defer s.deadlines.release(c)
			if n.client != nil {
				_ = n.client.Ping(c).Err()
			} else {
				_ = s.nodes.ask(c, s.unhurried())
			}
		}()
	}
}
