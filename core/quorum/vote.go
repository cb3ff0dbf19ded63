package quorum

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// election is one attempt to get a lock from a majority.
type election struct {
	q     *Store
	req   store.LockRequest
	began time.Time
	wait  time.Duration
	votes chan vote // has room for all

	ctx    context.Context // ends when the election is lost
	cancel context.CancelFunc
	won    chan struct{} // closed when it is won, and the fence is set
	fence  int64

	// What the votes amount to, for the one who counts them.
	clear   []bool // by member: it has certainly not granted anything
	granted int
	sent    time.Time // no lease that was granted began before
	highest int64     // fence that came with a grant
	refused int
	refusal store.LockReply
	errs    []error
	told    int // of the granted: members that have been told the fence
	untold  int // of the granted: members that cannot be
}

// vote is a member's answer: to the request and, if that was granted, to being told the fence.
type vote struct {
	member int
	reply  store.LockReply
	err    error
	clear  bool // it has certainly not granted anything
	fence  bool // it is the second answer
}

// elect asks all members for the lock. If it is not granted, what some have granted is given back in
// the background; the channel is closed when that has been tried.
func (q *Store) elect(ctx context.Context, req store.LockRequest) (store.LockReply, <-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return store.LockReply{}, nil, err
	}
	req.Queue, req.Fences = false, 1
	q.ExpectTTL(req.TTL + req.Delay)
	e := &election{
		q: q, req: req, wait: waitFor(req.TTL), won: make(chan struct{}),
		votes: make(chan vote, 2*len(q.members)), clear: make([]bool, len(q.members)),
	}
	// Those who vote late, after the caller has gone on with the lock, are still told the fence.
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.began = time.Now()
	e.sent = e.began
	for i, m := range q.members {
		q.errands.Run(func() { e.ask(i, m) })
	}
	reply, err := e.outcome(ctx)
	if err == nil && reply.Outcome == store.Granted {
		return reply, nil, nil
	}
	e.cancel()
	var members []*member
	for i, m := range q.members {
		if !e.clear[i] {
			members = append(members, m)
		}
	}
	return reply, q.giveBack(req.Ref(), members), err
}

// ask asks one member.
func (e *election) ask(i int, m *member) {
	ctx, cancel := context.WithTimeout(e.ctx, e.wait)
	defer cancel()
	reply, err := m.AcquireLock(ctx, e.req)
	if err != nil || reply.Outcome != store.Granted {
		undone := err == nil || errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnconfirmed)
		e.votes <- vote{member: i, reply: reply, err: err, clear: undone}
		return
	}
	// Only what is asked after the grant tells of a restart before it.
	err = e.checkAge(ctx, m)
	e.votes <- vote{member: i, reply: reply, err: err}
	if err != nil {
		return
	}
	select {
	case <-e.won:
	case <-e.ctx.Done():
		return
	}
	ctx, cancel = context.WithTimeout(e.ctx, e.wait)
	defer cancel()
	err = m.RaiseFence(ctx, e.req.Name, e.req.Key, e.fence)
	e.votes <- vote{member: i, err: err, fence: true}
}

var errForgetful = errors.New("it may have forgotten a lease: it was started too short a time ago")

// checkAge returns an error if the member may have forgotten a hold that was still valid when it
// granted the lock. If the election is won without it, its hold is as good as any from then on: what
// it had forgotten is over.
func (e *election) checkAge(ctx context.Context, m *member) error {
	up, err := m.Uptime(ctx)
	if err != nil {
		return err
	}
	if up-time.Since(e.began) < time.Duration(e.q.longest.Load()) {
		return errForgetful
	}
	return nil
}

// outcome counts the votes, until it is clear what comes of them.
func (e *election) outcome(ctx context.Context) (store.LockReply, error) {
	for !e.decided() {
		if err := e.next(ctx); err != nil {
			return store.LockReply{}, err
		}
	}
	switch {
	case e.granted >= e.q.majority:
	case e.answered():
		return e.refusal, nil
	default:
		return store.LockReply{}, e.q.unavailable(store.ErrUnavailable, e.errs)
	}

	// The fence goes to a majority of those that have granted the lock, and not just of all. Whoever
	// has the lock next got it from one of these, which had then been told: members that are merely
	// asked in between may have granted it before they were told.
	e.fence = e.highest + 1
	close(e.won)
	for e.told < e.q.majority {
		if e.granted-e.untold+e.open() < e.q.majority {
			return store.LockReply{}, e.q.unavailable(store.ErrUnavailable, e.errs)
		}
		if err := e.next(ctx); err != nil {
			return store.LockReply{}, err
		}
	}
	if !time.Now().Before(lease.ValidUntil(e.sent, e.req.TTL)) {
		return store.LockReply{}, fmt.Errorf("%w: quorum: the lease was over before a majority had granted it", store.ErrUnavailable)
	}
	return store.LockReply{Outcome: store.Granted, Grant: store.Grant{Sent: e.sent, Fence: e.fence, LastFence: e.fence}}, nil
}

// open is how many members have not answered.
func (e *election) open() int {
	return len(e.q.members) - e.granted - e.refused - len(e.errs) + e.untold
}

// decided reports whether the votes that are missing make no difference.
func (e *election) decided() bool {
	open := e.open()
	if e.granted >= e.q.majority || open == 0 {
		return true
	}
	return e.granted+open < e.q.majority && e.answered() == e.answeredWith(open)
}

// answered reports whether a majority has voted, or so many have refused that it needs no more.
func (e *election) answered() bool { return e.answeredWith(0) }

func (e *election) answeredWith(more int) bool {
	refused := e.refused + more
	return e.granted+refused >= e.q.majority || refused > len(e.q.members)-e.q.majority
}

// next counts one vote.
func (e *election) next(ctx context.Context) error {
	var v vote
	select {
	case v = <-e.votes:
	case <-ctx.Done():
		return ctx.Err()
	}
	switch {
	case v.fence && v.err == nil:
		e.told++
	case v.err != nil:
		e.errs = append(e.errs, v.err)
		if v.fence {
			e.untold++
		}
	case v.reply.Outcome == store.Granted:
		e.granted++
		e.highest = max(e.highest, v.reply.Fence)
		if sent := v.reply.Sent; !sent.IsZero() && sent.Before(e.sent) { // it had granted this ID before
			e.sent = sent
		}
	default:
		e.refuse(v.reply)
	}
	e.clear[v.member] = v.clear
	return nil
}

// refuse keeps, of those who refuse, the one that says most of the others.
func (e *election) refuse(reply store.LockReply) {
	e.refused++
	switch {
	case e.refusal.Outcome == store.Withdrawn:
	case reply.Outcome == store.Withdrawn:
		e.refusal.Outcome = store.Withdrawn
	default:
		e.refusal.Outcome = store.Taken
		if reply.Remaining > e.refusal.Remaining {
			e.refusal.Holder, e.refusal.Remaining = reply.Holder, reply.Remaining
		}
	}
}

// newPollDelay returns the delays between the attempts of one that waits.
func newPollDelay() func() time.Duration {
	spread := pollMin
	return func() time.Duration {
		delay := pollMin + rand.N(spread)
		spread = min(2*spread, pollMax-pollMin)
		return delay
	}
}

// sleep reports whether it has slept for d, and not only until ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
