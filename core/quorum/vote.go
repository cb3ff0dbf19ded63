package quorum

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// election is one attempt to acquire a lock from a majority.
type election struct {
	q     *Store
	req   store.LeaseRequest
	hold  *hold
	began time.Time
	wait  time.Duration
	votes chan vote // has room for all

	ctx    context.Context // canceled when the election is lost
	cancel context.CancelFunc
	won    chan struct{} // closed when it is won, and the fence is set
	fence  int64

	// The count of the votes, for the counting goroutine only.
	clear    []bool // by member: it has certainly granted nothing
	granted  int
	sent     time.Time // the earliest start of a granted lease
	highest  int64     // largest fence of a grant
	refused  int
	refusal  store.LeaseReply
	errs     []error
	fenced   int // granting members that have raised the fence
	unfenced int // granting members that have failed to
}

// vote is a reply of a member: to the request or, after a grant, to RaiseFence.
type vote struct {
	member int
	reply  store.LeaseReply
	err    error
	clear  bool // it has certainly granted nothing
	fence  bool // the reply to RaiseFence
}

// elect requests the lock of all members. If it is not granted, grants of a minority are released
// in the background; the channel is closed when that was tried.
func (q *Store) elect(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, *hold, <-chan struct{}, error) {
	if err := ctx.Err(); err != nil {
		return store.LeaseReply{}, nil, nil, err
	}
	req.Queue, req.Fences = false, 1
	q.ExpectTTL(req.TTL)
	e := &election{
		q: q, req: req, wait: waitFor(req.TTL), won: make(chan struct{}),
		votes: make(chan vote, 2*len(q.members)), clear: make([]bool, len(q.members)),
		hold: newHold(req.ID, len(q.members)),
	}
	for range q.members {
		e.hold.asked = append(e.hold.asked, make(chan struct{}))
	}
	// Members that vote after the caller has the lock still get the fence.
	e.ctx, e.cancel = context.WithCancel(context.WithoutCancel(ctx))
	e.began = time.Now()
	e.sent = e.began
	for i, m := range q.members {
		q.calls.Run(func() { e.request(i, m) })
	}
	reply, err := e.outcome(ctx)
	if err == nil && reply.Outcome == store.Granted {
		return reply, e.hold, nil, nil
	}
	e.cancel()
	return reply, nil, q.releaseAsync(req.Ref(0), e.hold, e.clear), err
}

// request requests the lock of one member.
func (e *election) request(i int, m *member) {
	ctx, cancel := context.WithTimeout(e.ctx, e.wait)
	defer cancel()
	reply, err := m.AcquireLease(ctx, e.req)
	close(e.hold.asked[i])
	if err != nil || reply.Outcome != store.Granted {
		undone := err == nil || errors.Is(err, store.ErrUnavailable) && !errors.Is(err, store.ErrUnconfirmed)
		e.votes <- vote{member: i, reply: reply, err: err, clear: undone}
		return
	}
	e.hold.setFence(i, reply.Fence)
	// Only an Uptime that is read after the grant shows a restart before it.
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

var errTooYoung = errors.New("it may have lost a lease: it was started too recently")

// checkAge returns an error if the member may have lost a hold that was still valid when it granted
// the lock. If the election is won without it, its hold counts from then on: the lost hold has
// expired.
func (e *election) checkAge(ctx context.Context, m *member) error {
	up, err := m.Uptime(ctx)
	if err != nil {
		return err
	}
	if up-time.Since(e.began) < time.Duration(e.q.longest.Load()) {
		return errTooYoung
	}
	return nil
}

// outcome counts the votes until the election is decided.
func (e *election) outcome(ctx context.Context) (store.LeaseReply, error) {
	for !e.decided() {
		if err := e.next(ctx); err != nil {
			return store.LeaseReply{}, err
		}
	}
	switch {
	case e.granted >= e.q.majority:
	case e.answered():
		return e.refusal, nil
	default:
		return store.LeaseReply{}, e.q.unavailable(store.ErrUnavailable, e.errs)
	}

	// A majority of the members must get the fence, each of which has granted the lock. The next
	// holder has a grant of one of them, made after its RaiseFence; other members may grant the
	// lock before they get the fence.
	e.fence = e.highest + 1
	close(e.won)
	for e.fenced < e.q.majority {
		if e.granted-e.unfenced+e.open() < e.q.majority {
			return store.LeaseReply{}, e.q.unavailable(store.ErrUnavailable, e.errs)
		}
		if err := e.next(ctx); err != nil {
			return store.LeaseReply{}, err
		}
	}
	if !time.Now().Before(lease.ValidUntil(e.sent, e.req.TTL)) {
		return store.LeaseReply{}, fmt.Errorf("%w: quorum: the lease expired before a majority had granted it", store.ErrUnavailable)
	}
	return store.LeaseReply{Outcome: store.Granted, Grant: store.Grant{Sent: e.sent, Fence: e.fence, LastFence: e.fence}}, nil
}

// open returns the number of members that have not replied.
func (e *election) open() int {
	return len(e.q.members) - e.granted - e.refused - len(e.errs) + e.unfenced
}

// decided reports whether the missing votes make no difference.
func (e *election) decided() bool {
	open := e.open()
	if e.granted >= e.q.majority || open == 0 {
		return true
	}
	return e.granted+open < e.q.majority && e.answered() == e.answeredWith(open)
}

// answered reports whether a majority has voted, or enough have refused.
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
		e.fenced++
	case v.err != nil:
		e.errs = append(e.errs, v.err)
		if v.fence {
			e.unfenced++
		}
	case v.reply.Outcome == store.Granted:
		e.granted++
		e.highest = max(e.highest, v.reply.Fence)
		if sent := v.reply.Sent; !sent.IsZero() && sent.Before(e.sent) { // a repeat of an earlier grant
			e.sent = sent
		}
	default:
		e.refuse(v.reply)
	}
	e.clear[v.member] = v.clear
	return nil
}

// refuse counts a refusal, and keeps the one with the longest remaining lease.
func (e *election) refuse(reply store.LeaseReply) {
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
