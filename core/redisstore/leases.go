package redisstore

import (
	"context"
	"errors"
	"iter"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// recordLife is how long the record of a lock is kept without holds and waiters.
const recordLife = time.Hour

// AcquireLease implements store.Leases: one script call, and before the first one a check of the
// server's eviction policy. A script ends at most 128 holds that have run out. For a request that
// does not queue, it is called again while more of them remain.
func (s *Store) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	if s.hooks.Begun() {
		return store.LeaseReply{}, store.ErrClosed
	}
	if req.Weight > req.Capacity-req.Reserve { // it leaves the queue, if it is there
		_, err := s.ReleaseLeases(ctx, []store.LeaseRef{req.Ref(0)})
		return store.LeaseReply{Outcome: store.Taken}, err
	}
	keys := s.leaseKeys(req.Name, req.Key)
	reply, err := s.waiting.Acquire(ctx, req, keys)
	for before := math.MaxInt; !req.Queue && err == nil && reply.Outcome == store.Taken && reply.Next == moreToEnd && reply.InUse < before; {
		before = reply.InUse
		reply, err = s.waiting.Acquire(ctx, req, keys)
	}
	return reply.LeaseReply, err
}

// AwaitLease implements store.Leases.
func (s *Store) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	req.Confirmed = req.Confirmed || s.config.acks > 0
	return s.waiting.Await(ctx, req, s.leaseKeys(req.Name, req.Key))
}

// moreToEnd is the reply's time until the first hold ends if holds that have run out remain.
const moreToEnd = time.Microsecond

// leaseReply is a reply with the number of replicas that have confirmed it.
type leaseReply struct {
	waiting.Reply
	acks int
}

// acquireCall has the arguments of a call of the script in one allocation: converting a string
// to an interface allocates, converting a pointer does not.
type acquireCall struct {
	keys                        leaseKeys
	names, hold, key, expiry, q string
	ttl                         int64
	sends                       sends
	args                        [8]any
}

func (s *Store) newAcquireCall(req *store.LeaseRequest, keys *leaseKeys) *acquireCall {
	c := &acquireCall{keys: *keys, ttl: req.TTL.Microseconds()}
	idle := keys.linger()
	named := req.Key
	if len(s.config.secret) > 0 {
		named = ""
	}
	// The texts are parts of one string, which saves allocations.
	var room [1024]byte
	text := append(append(room[:0], req.ID...), s.inbox.process...)
	names := len(text)
	text = strconv.AppendInt(append(text, ':'), c.ttl, 10)
	text = strconv.AppendInt(append(text, ':'), int64(req.Weight), 10)
	text = strconv.AppendInt(append(text, ":0:"...), int64(len(req.Label)), 10)
	text = append(append(text, ':'), req.Label...)
	hold := len(text)
	text = strconv.AppendInt(text, c.ttl/1000+1+idle, 10)
	expiry := len(text)
	text = append(append(strconv.AppendInt(text, int64(len(named)), 10), ':'), named...)
	key := len(text)
	if req.Queue {
		text = append(text, "1 "...)
	} else {
		text = append(text, "0 "...)
	}
	for _, n := range [...]int64{int64(req.Capacity - req.Reserve), int64(req.Reserve), int64(req.MaxWaiting), req.Place, waiting.Elapsed()} {
		text = append(strconv.AppendInt(text, n, 10), ' ')
	}
	text = append(append(text, s.pushMode()...), ' ')
	text = append(strconv.AppendInt(text, s.waiting.DeadAfter().Microseconds(), 10), ' ')
	text = append(strconv.AppendInt(text, idle, 10), ' ')
	text = append(text, s.inbox.channels...)
	all := string(text)
	c.names, c.hold, c.expiry, c.key, c.q = all[:names], all[names:hold], all[hold:expiry], all[expiry:key], all[key:]
	c.args = [...]any{&c.names, &c.ttl, min(max(req.Fences, 1), store.MaxFences), &c.hold, &c.expiry, &c.key, &c.q, &c.sends}
	return c
}

// acquireLease requests a lease, or repeats the request for it.
func (s *Store) acquireLease(ctx context.Context, req store.LeaseRequest, keys leaseKeys) (waiting.Reply, error) {
	c := s.newAcquireCall(&req, &keys)
	st := script.Step{Call: acquireLease.Call(c.keys[:], c.args[:]...), Operation: opAcquireLease, Begins: true, Grants: true}
	reply, err := script.Run(ctx, s.redis, st, func(r script.Reply) (leaseReply, error) {
		a, err := readLeaseReply(r, req.TTL)
		a.acks = r.Acks
		return a, err
	})
	if c.sends.n.Load() > 1 || err != nil && (ctx.Err() != nil || errors.Is(err, store.ErrUnconfirmed)) {
		s.waiting.Late(req.ID)
	}
	if err == nil && reply.Outcome == store.Granted && reply.acks < s.config.acks {
		release := func(ctx context.Context) error {
			_, err := s.ReleaseLeases(ctx, []store.LeaseRef{req.Ref(reply.Fence)})
			return err
		}
		return waiting.Reply{Over: true}, s.notReplicated(ctx, reply.acks, release)
	}
	return reply.Reply, err
}

func readLeaseReply(reply script.Reply, ttl time.Duration) (a leaseReply, err error) {
	if text, ok := reply.Value.(string); ok { // a list would cost allocations
		var r script.Reader
		a.Outcome, a.Sent, a.TTL = store.Granted, reply.Sent, ttl
		first, rest, _ := strings.Cut(text, " ")
		last, rest, before := strings.Cut(rest, " ")
		a.Fence, a.LastFence = r.Parse(first), r.Parse(last)
		if before {
			left, place, _ := strings.Cut(rest, " ")
			a.Repeated = true
			a.TTL, a.Place = time.Duration(r.Parse(left))*time.Microsecond, r.Parse(place)
		}
		return a, r.Err
	}
	r := script.Fields(reply.Value)
	switch outcome := r.Text(); {
	case outcome == "withdrawn":
		a.Outcome = store.Withdrawn
	case (outcome == "queued" || outcome == "taken" || outcome == "full") && len(r.Left) == 6:
		a.Outcome = store.Taken
		if outcome == "queued" {
			a.Outcome = store.Queued
		}
		a.QueueFull = outcome == "full"
		a.Holder, a.Remaining, a.InUse, a.Waiting = r.Text(), r.Micros(), int(r.Number()), int(r.Number())
		a.Place, a.Next = r.Number(), r.Micros()
	default:
		return a, script.ErrOddReply
	}
	return a, r.Err
}

// RenewLeases implements store.Leases: one pipeline for each hundred.
func (s *Store) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	calls := make([]script.Call, len(refs))
	for i, r := range refs {
		calls[i] = s.renewCall(r, r.TTL)
	}
	return s.finishEach(ctx, opRenewLeases, calls)
}

func (s *Store) renewCall(r store.LeaseRef, ttl time.Duration) script.Call {
	keys := s.leaseKeys(r.Name, r.Key)
	return renewLease.Call(keys[:], r.ID, r.Fence, ttl.Microseconds(), keys.linger(), s.inbox.channels)
}

// ReleaseLeases implements store.Leases: one script call for one lease, and one pipeline for each
// hundred of many.
func (s *Store) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	if len(refs) == 1 {
		c := s.newReleaseCall(&refs[0])
		st := script.Step{Call: releaseLease.Call(c.keys[:], c.args[:]...), Operation: opReleaseLeases, Urgency: script.Finishing}
		outcome, err := script.Run(ctx, s.redis, st, func(r script.Reply) (store.ReleaseOutcome, error) { return readRelease(r.Value) })
		if err == nil {
			s.waiting.Released(refs[0].ID)
		}
		c.outcome[0] = outcome
		return c.outcome[:], err
	}
	outcomes := make([]store.ReleaseOutcome, len(refs))
	calls := make([]script.Call, len(refs))
	for i := range refs {
		c := s.newReleaseCall(&refs[i])
		calls[i] = releaseLease.Call(c.keys[:], c.args[:]...)
	}
	err := s.redis.RunEach(ctx, opReleaseLeases, script.Finishing, calls, func(i int, reply any, err error) error {
		if err == nil {
			if outcomes[i], err = readRelease(reply); err == nil {
				s.waiting.Released(refs[i].ID)
			}
		}
		return err
	})
	return outcomes, err
}

// releaseCall has the arguments of a call in one allocation: see acquireCall.
type releaseCall struct {
	keys          leaseKeys
	id, tombstone string
	fence, idle   int64
	sends         sends
	args          [6]any
	outcome       [1]store.ReleaseOutcome
}

func (s *Store) newReleaseCall(ref *store.LeaseRef) *releaseCall {
	return s.newReleaseCallOf(s.leaseKeys(ref.Name, ref.Key), ref)
}

func (s *Store) newReleaseCallOf(keys leaseKeys, ref *store.LeaseRef) *releaseCall {
	c := &releaseCall{keys: keys, id: ref.ID, fence: ref.Fence, idle: keys.linger(), tombstone: "0"}
	if s.waiting.MayArrive(ref.ID) {
		c.tombstone = "1"
	}
	if ref.Repeated {
		c.sends.n.Store(1)
	}
	c.args = [...]any{&c.id, &c.fence, &c.idle, &c.tombstone, &c.sends, &s.inbox.caller}
	return c
}

// releaseUnwanted releases a grant that no request of this process waits for.
func (s *Store) releaseUnwanted(record, id string, fence int64) {
	c := s.newReleaseCallOf(leaseKeysOf([]byte(record)), &store.LeaseRef{ID: id, Fence: fence})
	c.tombstone = "-"
	_, _ = s.finish(s.redis.Life(), opReleaseLeases, releaseLease.Call(c.keys[:], c.args[:]...))
}

func readRelease(reply any) (store.ReleaseOutcome, error) {
	n, err := script.Int(reply)
	switch {
	case err != nil:
		return store.ReleaseUnknown, err
	case n == 1:
		return store.Released, nil
	case n == 0:
		return store.NotHeld, nil
	}
	return store.ReleaseUnknown, nil
}

// DowngradeLease implements store.LeaseDowngrader: one script call.
func (s *Store) DowngradeLease(ctx context.Context, ref store.LeaseRef, weight int) (bool, error) {
	keys := s.leaseKeys(ref.Name, ref.Key)
	return s.finish(ctx, opReleaseLeases, downgradeLease.Call(keys[:],
		ref.ID, ref.Fence, ref.TTL.Microseconds(), weight, s.inbox.process, keys.linger(), s.inbox.channels))
}

// VerifyLease implements store.LeaseVerifier: one script call, which changes nothing.
func (s *Store) VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error) {
	st := script.Step{Call: s.renewCall(ref, 0), Operation: opInspect}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (bool, error) { return script.IsOne(r.Value) })
}

// RevokeLease implements store.LeaseRevoker: one script call. The holder gets a push.
func (s *Store) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	keys := s.leaseKeys(name, key)
	return s.finish(ctx, opReleaseLeases, revokeLease.Call(keys[:], fence, keys.linger(), new(sends), s.inbox.channels))
}

// InspectLease implements store.LeaseLister: one script call, which changes nothing.
func (s *Store) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	keys := s.leaseKeys(name, key)
	st := script.Step{Call: inspectLease.Call(keys[:], store.MaxListed), Operation: opInspect, Urgency: script.Reading}
	state, err := script.Run(ctx, s.redis, st, func(r script.Reply) (store.LeaseState, error) { return readLeaseState(r.Value) })
	state.Key = key
	return state, err
}

func readLeaseState(reply any) (store.LeaseState, error) {
	r := script.Fields(reply)
	state := store.LeaseState{Key: r.Text(), InUse: int(r.Number()), Waiting: int(r.Number())}
	for n := r.Number(); n > 0 && r.Err == nil; n-- {
		state.Holders = append(state.Holders, store.LeaseHolder{
			Fence: r.Number(), LastFence: r.Number(), Weight: int(r.Number()), Label: r.Text(), Age: r.Micros(), Remaining: r.Micros(),
		})
	}
	for len(r.Left) > 0 && r.Err == nil {
		state.Waiters = append(state.Waiters, store.LeaseWaiter{
			Weight: int(r.Number()), Reserve: int(r.Number()), Label: r.Text(), Age: r.Micros(),
		})
	}
	return state, r.Err
}

// ListLeases implements store.LeaseLister: it scans all keys of every master, a hundred at a time. With
// WithSecret, the Key of each state is the hash of the key.
func (s *Store) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	return list(ctx, s, s.withName(ofLeases, name),
		func(key string) (string, bool) { return s.tagOf(key, ofLeases, name) },
		func(tag string) script.Call {
			keys := leaseKeysOf([]byte(s.config.prefix + ofLeases + tag + "}:" + name))
			return inspectLease.Call(keys[:], store.MaxListed)
		},
		func(tag string, reply any) (store.LeaseState, bool, error) {
			state, err := readLeaseState(reply)
			if state.Key == "" {
				state.Key = tag
			}
			return state, len(state.Holders) > 0 || state.Waiting > 0, err
		})
}
