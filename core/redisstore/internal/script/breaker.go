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

// Each node has a breaker. This file maps the results of calls to its verdicts.

func (n *Node) newBreaker() *breaker.Breaker {
	return breaker.New(breaker.Config{
		Server: "redis", Address: n.address, Logger: n.owner.config.Logger,
		Probe: func() error {
			result := n.probe()
			if breaker.IsFailure(result) {
				n.owner.nodes.refresh()
				n.owner.deadlines.refuse(n, result)
			}
			return result
		},
		IsDecisive: redisfault.IsUnreachable, // the client has dialed
		Explain: func(failure error) error {
			explained := n.Explain(failure, false)
			n.LogFault(context.Background(), explained)
			return explained
		},
		Life: n.owner.life, Start: n.owner.Start,
	})
}

func (n *Node) isDown() bool { return n.breaker.IsOpen() }

// verdict returns the meaning of an error for the breaker: nil if the server works,
// breaker.ErrNoEvidence if it may work.
func verdict(err error) error {
	switch {
	case err == nil:
		return nil
	case redisfault.IsReply(err):
		return replyVerdict(err)
	case errors.Is(err, ErrOddReply):
		return nil
	case errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnconfirmed): // the store's own refusal
		return breaker.ErrNoEvidence
	}
	return err
}

// replyVerdict is verdict for a reply. A misconfigured server counts as working, unless
//   - every call fails, each at the cost of a connection, or
//   - every call that writes fails.
func replyVerdict(err error) error {
	switch r, _ := redisfault.Find(err); {
	case r.Cause == store.ConnectionLimit: // established connections may work
		return breaker.ErrNoEvidence
	case r.Verdict == redisfault.Outage && !IsTorn(err), r.Cause == store.Authentication, r.Cause == store.ReadOnly:
		return err
	}
	return nil
}

// Explain returns an error of the client as one of a store: see [redisfault.Explain].
func (n *Node) Explain(err error, open bool) error {
	return redisfault.Explain(err, open, n.wrote.Load())
}

// reportResult reports the result of a call. The result depends on the connection, so a failure
// makes the breaker probe the node, as does a call without a reply or a connection. If the caller
// left while the node replied to other calls, the node is not probed.
func (n *Node) reportResult(c *callContext, admitted breaker.Call, err error) {
	replied := err == nil || redisfault.IsReply(err)
	if replied && !n.answered.Load() {
		n.answered.Store(true)
	}
	switch means := verdict(err); {
	case means == nil:
		if c.writes {
			n.hear()
		}
	case redisfault.IsUnreachable(err):
		n.owner.nodes.refresh()
		admitted.End(means)
	case !replied && (c.Err() != nil || errors.Is(err, redis.ErrPoolTimeout)):
		n.owner.nodes.refresh()
		if !c.large && !n.repliedSince(c.sent.since()) {
			n.doubtSilence(c)
		}
	case breaker.IsFailure(means):
		n.owner.nodes.refresh()
		admitted.End(means)
	}
}

// hear records that the node has taken a write.
func (n *Node) hear() {
	n.heard.Store(n.owner.clock())
	if !n.wrote.Load() {
		n.wrote.Store(true)
	}
}

// repliedSince reports whether the node has replied to a call that may write, some time after then:
// an earlier reply may have been on its way before.
func (n *Node) repliedSince(then time.Time) bool {
	return !then.IsZero() && n.heard.Load() > int64(then.Add(n.replyIn()/10).Sub(n.owner.made))
}

// replyIn returns the time for the reply to a small call: the store's timeout, or the client's if
// it is shorter.
func (n *Node) replyIn() time.Duration {
	timeout := n.owner.config.Timeout
	if n.server != nil && n.server.Options().ReadTimeout > 0 {
		timeout = min(timeout, n.server.Options().ReadTimeout)
	}
	return timeout
}
