package script

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Each node has a breaker. Here is what the results of calls mean for it.

func (n *Node) newBreaker() *breaker.Breaker {
	return breaker.New(breaker.Config{
		Server: "redis", Address: n.address, Logger: n.owner.config.Logger,
		Probe: func() error {
			result := n.write()
			if breaker.IsFailure(result) {
				n.owner.nodes.refresh()
			}
			return result
		},
		IsDecisive: isDecisive,
		Explain: func(failure error) error {
			explained := redisfault.Explain(failure, false)
			n.LogFault(context.Background(), explained)
			return explained
		},
		Life: n.owner.life, Start: n.owner.Start,
	})
}

func (n *Node) isDown() bool { return n.breaker.IsOpen() }

// isDecisive reports whether a single such error proves that the node cannot work. A reply or a
// refusal does; a timeout may have many reasons.
func isDecisive(err error) bool {
	return redisfault.IsUnreachable(err) || redisfault.IsUnauthenticated(err) || redisfault.RefusesWrites(err)
}

// verdict returns what an error means for the breaker: nil if the server works, breaker.ErrNoEvidence if it
// may work.
func verdict(caller context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case caller.Err() != nil, errors.Is(err, redis.ErrPoolTimeout): // canceled by the caller, or no free connection
		return breaker.ErrNoEvidence
	case redisfault.IsUnauthenticated(err): // all calls fail, and each costs a connection
		return err
	case redisfault.IsReply(err) && !didNotRun(err), IsTorn(err), errors.Is(err, ErrOddReply):
		return nil
	case errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnconfirmed): // the store's own refusal
		return breaker.ErrNoEvidence
	}
	return err
}

// reportResult reports the result of a call. A timeout counts only if no other call got a reply
// after the request was written: a server that replies to others is busy, not down. It does not
// count for a call that got no connection in time, or got it with little time left, since other
// calls may have used them all.
func (n *Node) reportResult(caller context.Context, c *callContext, admitted breaker.Call, err error) {
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
			means = breaker.ErrNoEvidence
		}
	case errors.Is(means, breaker.ErrNoEvidence), redisfault.IsReply(err), redisfault.IsUnreachable(err):
	case late && (c.sent.silence() < n.owner.config.Timeout/2 || c.large), n.repliedSince(c.sent.since()):
		means = breaker.ErrNoEvidence
	}
	if breaker.IsFailure(means) {
		n.owner.nodes.refresh()
	}
	admitted.End(means)
	if errors.Is(means, breaker.ErrNoEvidence) && late && !redisfault.IsReply(err) {
		n.recordMiss()
	}
}

func (n *Node) hear() { n.heard.Store(n.owner.clock()) }

// repliedSince reports whether the node has replied to a step that may write some time after then:
// earlier replies may still have been on their way.
func (n *Node) repliedSince(then time.Time) bool {
	return !then.IsZero() && n.heard.Load() > int64(then.Add(n.owner.config.Timeout/10).Sub(n.owner.made))
}
