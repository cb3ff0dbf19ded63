package script

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

func (n *Node) newBreaker() *gobreaker.TwoStepCircuitBreaker[struct{}] {
	return gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "redis",
		MaxRequests: 1,
		Timeout:     probeEvery,
		Interval:    forgetAfter,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter || n.trip.Load() },
		IsExcluded:  func(err error) bool { return errors.Is(err, errIgnored) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			n.open.Store(to != gobreaker.StateClosed)
			log := n.owner.config.Logger
			switch {
			case from == gobreaker.StateClosed && to == gobreaker.StateOpen:
				down := n.downError()
				log.Warn("lockkeeper: redis is down; calls fail at once until it replies",
					"cause", string(store.CauseOf(down)), "address", n.address, "error", down)
				n.owner.Start(n.probe)
			case to == gobreaker.StateClosed:
				log.Info("lockkeeper: redis replies again", "address", n.address)
			}
		},
	})
}

// isDown reports whether the breaker is not closed: only the probe may pass a half-open one, so
// that no caller has to wait.
func (n *Node) isDown() bool { return n.open.Load() }

func (n *Node) downError() error {
	if down := n.down.Load(); down != nil {
		return *down
	}
	return errDown
}

// failed records the failure that calls return while the breaker is open. It may change: a server
// that was unreachable may then refuse the password.
func (n *Node) failed(err error) {
	explained := redisfault.Explain(err, false)
	down := fmt.Errorf("%w: %w", errDown, store.WithCauseOf(explained, err.Error()))
	n.down.Store(&down)
	n.LogFault(context.Background(), explained)
}

// report reports the result of a call to the breaker. A call that is tried although the breaker is
// open does not count.
type report struct {
	node *Node
	done func(error)
}

func (r report) is(err error) {
	n := r.node
	failed := err != nil && !errors.Is(err, errIgnored)
	if failed {
		n.owner.nodes.refresh()
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
	case redisfault.IsReply(err) && !didNotRun(err), IsTorn(err), errors.Is(err, ErrOddReply):
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
func (n *Node) reportResult(caller context.Context, c *callContext, r report, err error) {
	means := verdict(caller, err)
	late := c.Err() != nil
	if (err == nil || redisfault.IsReply(err)) && !n.answered.Load() {
		n.answered.Store(true)
	}
	switch {
	case means == nil:
		if c.writes {
			n.hear()
		} else if n.server != nil { // a server that only serves reads is down for writes
			means = errIgnored
		}
	case errors.Is(means, errIgnored), redisfault.IsReply(err), redisfault.IsUnreachable(err):
	case late && (c.sent.silence() < n.owner.config.Timeout/2 || c.large), n.repliedSince(c.sent.since()):
		means = errIgnored
	}
	if late && r.done != nil && means != nil && !errors.Is(means, errIgnored) &&
		n.owner.deadlines.countSilent(n, n.owner.config.Timeout/2) >= tripAfter-1 {
		n.trip.Store(true) // the others are about to fail
	}
	r.is(means)
	if errors.Is(means, errIgnored) && late && !redisfault.IsReply(err) {
		n.recordMiss()
	}
}

func (n *Node) hear() { n.heard.Store(n.owner.clock()) }

// repliedSince reports whether the node has replied to a step that may write some time after then:
// earlier replies may still have been on their way.
func (n *Node) repliedSince(then time.Time) bool {
	return !then.IsZero() && n.heard.Load() > int64(then.Add(n.owner.config.Timeout/10).Sub(n.owner.made))
}
