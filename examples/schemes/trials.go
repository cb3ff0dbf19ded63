package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// trial is one failure of a scheme, run on that scheme and on Lockkeeper.
type trial struct {
	scheme, name    string
	classic, keeper side
}

// side is one side of a trial.
type side func(ctx context.Context, s *stage) (finding, error)

// finding is the outcome of one side.
type finding struct {
	verdict verdict
	text    string
}

// verdict classifies a finding.
type verdict string

const (
	sound  verdict = "ok"
	fenced verdict = "FENCED" // no lock can prevent this; the fence did
	costly verdict = "COSTLY" // correct, but expensive
	broken verdict = "BROKEN"
	absent verdict = "-" // its server is not installed
)

// holds reports whether a lock, or its fence, has done what it is for.
func (v verdict) holds() bool { return v == sound || v == fenced }

func (v verdict) fails() bool { return !v.holds() }

// maker makes a scheme for a process.
type maker func(s *stage, p *process) scheme

var (
	newSetnxInScript maker = func(s *stage, p *process) scheme {
		return &setnxInScript{client: p.client, key: s.key("lock"), ttl: s.ttl}
	}
	newSetNXEX maker = func(s *stage, p *process) scheme {
		return &setNXEX{client: p.client, key: s.key("lock"), ttl: s.ttl}
	}
	newGetThenDel maker = func(s *stage, p *process) scheme {
		return &getThenDel{client: p.client, key: s.key("lock"), ttl: s.ttl}
	}
	newCompareAndDelete maker = func(s *stage, p *process) scheme {
		return &compareAndDelete{client: p.client, key: s.key("lock"), ttl: s.ttl}
	}
)

// trials returns all trials: of locks, from the simplest scheme to the most advanced, and of delayed
// work.
func trials() []trial {
	return []trial{
		{"SETNX, then EXPIRE", "A dies between the two", diesBetween, keeperAfterDeath},
		{"SETNX with a timestamp, GETSET", "B's clock is fast", clocksDiffer, keeperAndClocks},
		{"SETNX with a timestamp, GETSET", "A is dead; B and C find its lock expired", expiryOverwritten, keeperAndHeirs},
		{"SETNX and EXPIRE in a script", "A's release is late: B has the lock", lateRelease(newSetnxInScript), keeperLateRelease},
		{"SETNX and EXPIRE in a script", "A's work outlives the expiry", outlived(newSetnxInScript), keeperOutlived},
		{"SET NX EX", "A's release is late: B has the lock", lateRelease(newSetNXEX), keeperLateRelease},
		{"SET NX EX", "A's work outlives the expiry", outlived(newSetNXEX), keeperOutlived},
		{"SET NX PX random, GET and DEL", "A's lock expires between the two", lateRelease(newGetThenDel), keeperLateRelease},
		{"the same, WATCH and MULTI", "B waits for A", polled, keeperPushed},
		{"the same, compare and delete in a script", "A's work outlives the expiry", outlived(newCompareAndDelete), keeperOutlived},
		{"the same, renewed by a watchdog", "A is paused, then writes", pausedWriter, keeperPausedWriter},
		{"the same, on a master with a replica", "failover before replication", failover, keeperFailover},
		{"Redlock on five masters", "a master with A's lock restarts empty", restarted, keeperRestarted},
		{"delayed: popped from a zset when due", "A takes the task and is killed", poppedAndDied, keeperConsumerDied},
		{"delayed: a key expires, and Redis notifies", "A is replaced by B when the key expires",
			expiredUnheard, keeperUnheard},
		{"delayed: a zset polled with the client's clock", "B's clock is fast, C's is slow",
			clocksOfConsumers, keeperClocksOfConsumers},
		{"delayed: a subscriber moves due tasks to a list (RDelayedQueue)", "A, the only one, ends; a consumer waits",
			transferStopped, keeperWithoutProducer},
	}
}

// got returns an error if a lock that the trial needs was not acquired.
func got(ok bool, err error) error {
	if err == nil && !ok {
		err = errors.New("a free lock was refused")
	}
	return err
}

// crowded reports how many held the lock at once.
func crowded(r *room, why string) (finding, error) {
	n := r.crowd()
	switch n {
	case 1:
		return finding{sound, "one holder"}, nil
	case 2:
		return finding{broken, why + ": two holders"}, nil
	}
	return finding{}, fmt.Errorf("%d holders", n)
}

func diesBetween(ctx context.Context, s *stage) (finding, error) {
	a, b := s.process(), s.process()
	a.dieBefore("pexpire")
	if _, err := (&setnxThenExpire{a.client, s.key("lock"), s.ttl}).lock(ctx); !errors.Is(err, errDied) {
		return finding{}, fmt.Errorf("a process lives on: %w", err)
	}
	if err := s.pass(ctx, 2*s.ttl); err != nil {
		return finding{}, err
	}
	ok, err := (&setnxThenExpire{b.client, s.key("lock"), s.ttl}).lock(ctx)
	if err != nil || ok {
		return finding{sound, "B got the lock"}, err
	}
	left, err := b.client.PTTL(ctx, s.key("lock")).Result()
	if err != nil || left >= 0 {
		return finding{sound, "the lock expires"}, err
	}
	return finding{broken, "the key has no expiry: locked forever"}, nil
}

func clocksDiffer(ctx context.Context, s *stage) (finding, error) {
	var r room
	now := time.Now()
	a := &setnxGetset{client: s.process().client, key: s.key("lock"), ttl: s.ttl, now: func() time.Time { return now }}
	b := &setnxGetset{client: s.process().client, key: s.key("lock"), ttl: s.ttl, now: func() time.Time { return now.Add(2 * s.ttl) }}
	if err := got(a.lock(ctx)); err != nil {
		return finding{}, err
	}
	r.enter()
	ok, err := b.lock(ctx)
	if err != nil {
		return finding{}, err
	}
	if ok {
		r.enter()
	}
	return crowded(&r, "B took A's lock for expired")
}

func expiryOverwritten(ctx context.Context, s *stage) (finding, error) {
	now := time.Now()
	at := func(p *process, after time.Duration) *setnxGetset {
		return &setnxGetset{client: p.client, key: s.key("lock"), ttl: s.ttl, now: func() time.Time { return now.Add(after) }}
	}
	slow := s.process()
	a, b := at(s.process(), 0), at(s.process(), 2*s.ttl)
	c, d := at(slow, 2*s.ttl+time.Millisecond), at(s.process(), 2*s.ttl+2*time.Millisecond)
	if err := got(a.lock(ctx)); err != nil {
		return finding{}, err
	}
	// A is dead, and its lock has expired. C has seen that, but B is faster.
	paused, goOn := slow.pauseBefore("getset")
	defer goOn()
	cGot, cErr := false, make(chan error, 1)
	go func() {
		var err error
		cGot, err = c.lock(ctx)
		cErr <- err
	}()
	if err := await(ctx, paused); err != nil {
		return finding{}, err
	}
	if err := got(b.lock(ctx)); err != nil {
		return finding{}, err
	}
	goOn()
	if err := <-cErr; err != nil || cGot {
		return finding{broken, "B and C have the lock: two holders"}, err
	}
	if err := b.unlock(ctx); err != nil {
		return finding{}, err
	}
	dGot, err := d.lock(ctx)
	if err != nil || dGot {
		return finding{sound, "B had the lock, then D"}, err
	}
	return finding{broken, "C's GETSET replaced B's expiry, and B could not release: locked, without a holder"}, nil
}

func lateRelease(make maker) side {
	return func(ctx context.Context, s *stage) (finding, error) {
		var r room
		slow := s.process()
		a, b, c := make(s, slow), make(s, s.process()), make(s, s.process())
		if err := got(a.lock(ctx)); err != nil {
			return finding{}, err
		}
		r.enter()
		r.leave() // A's work is done
		late, err := slow.lateCall(ctx, "del", a.unlock)
		if err != nil {
			return finding{}, err
		}
		if err := s.pass(ctx, s.ttl+time.Millisecond); err != nil {
			return finding{}, err
		}
		if err := got(b.lock(ctx)); err != nil {
			return finding{}, err
		}
		r.enter()
		if err := late(); err != nil {
			return finding{}, err
		}
		ok, err := c.lock(ctx)
		if err != nil {
			return finding{}, err
		}
		if ok {
			r.enter()
		}
		return crowded(&r, "A deleted B's lock, and C got it")
	}
}

// lateCall starts a call of a process that pauses before one of its commands. The returned function
// resumes the process, and returns the call's error.
func (p *process) lateCall(ctx context.Context, command string, call func(context.Context) error) (late func() error, err error) {
	paused, goOn := p.pauseBefore(command)
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	if err := await(ctx, paused); err != nil {
		goOn()
		return nil, err
	}
	return func() error {
		goOn()
		return <-done
	}, nil
}

func await(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func outlived(make maker) side {
	return func(ctx context.Context, s *stage) (finding, error) {
		var r room
		a, b := make(s, s.process()), make(s, s.process())
		if err := got(a.lock(ctx)); err != nil {
			return finding{}, err
		}
		r.enter()
		if err := s.pass(ctx, s.ttl+time.Millisecond); err != nil {
			return finding{}, err
		}
		ok, err := b.lock(ctx)
		if err != nil {
			return finding{}, err
		}
		if ok {
			r.enter()
		}
		return crowded(&r, "A's lock expired while it worked, unnoticed")
	}
}

// pollEvery is the poll interval of the waiter of watchMulti.
const pollEvery = 10 * time.Millisecond

// patient is how many requests a waiter may send in a second before that counts as costly.
const patient = 10

func polled(ctx context.Context, s *stage) (finding, error) {
	waiter := s.process()
	a := &watchMulti{client: s.process().client, key: s.key("lock"), ttl: 4 * s.ttl, poll: pollEvery}
	b := &watchMulti{client: waiter.client, key: s.key("lock"), ttl: 4 * s.ttl, poll: pollEvery}
	if err := got(a.lock(ctx)); err != nil {
		return finding{}, err
	}
	before, err := waiter.warm(ctx)
	if err != nil {
		return finding{}, err
	}
	locked := make(chan error, 1)
	go func() { locked <- b.await(ctx) }()
	if err := wait(ctx, s.ttl); err != nil {
		return finding{}, err
	}
	if err := a.unlock(ctx); err != nil {
		return finding{}, err
	}
	if err := <-locked; err != nil {
		return finding{}, err
	}
	return requests(waiter.writes.Load()-before, s.ttl), b.unlock(ctx)
}

// warm opens a connection, and returns the number of requests for that.
func (p *process) warm(ctx context.Context) (int64, error) {
	err := p.client.Ping(ctx).Err()
	return p.writes.Load(), err
}

func requests(n int64, in time.Duration) finding {
	f := finding{sound, fmt.Sprintf("B sent %d requests in %v of waiting", n, in)}
	if float64(n) > patient*max(in.Seconds(), 1) {
		f.verdict = costly
	}
	return f
}

func pausedWriter(ctx context.Context, s *stage) (finding, error) {
	slow, quick := s.process(), s.process()
	a := &watchdog{compareAndDelete: compareAndDelete{client: slow.client, key: s.key("lock"), ttl: s.ttl}}
	b := &watchdog{compareAndDelete: compareAndDelete{client: quick.client, key: s.key("lock"), ttl: s.ttl}}
	if err := got(a.lock(ctx)); err != nil {
		return finding{}, err
	}
	late, err := slow.lateCall(ctx, "set", func(ctx context.Context) error {
		return slow.client.Set(ctx, s.document(), "A's", 0).Err()
	})
	if err != nil {
		return finding{}, err
	}
	if err := s.pass(ctx, s.ttl+time.Millisecond); err != nil {
		return finding{}, err
	}
	if err := got(b.lock(ctx)); err != nil {
		return finding{}, err
	}
	if err := errors.Join(quick.client.Set(ctx, s.document(), "B's", 0).Err(), b.unlock(ctx), late(), a.unlock(ctx)); err != nil {
		return finding{}, err
	}
	text, err := quick.client.Get(ctx, s.document()).Result()
	if err != nil || text == "B's" {
		return finding{sound, "A's write was refused"}, err
	}
	return finding{broken, "A, awake again, overwrote what B had written"}, nil
}

func failover(ctx context.Context, s *stage) (finding, error) {
	var r room
	pair, address, err := s.newPair()
	if err != nil {
		return finding{}, err
	}
	a, b := newCompareAndDelete(s, s.processOn(address)), newCompareAndDelete(s, s.processOn(address))
	if err := got(a.lock(ctx)); err != nil {
		return finding{}, err
	}
	r.enter()
	pair.failover()
	ok, err := b.lock(ctx)
	if err != nil {
		return finding{}, err
	}
	if ok {
		r.enter()
	}
	return crowded(&r, "the new master knew nothing of A's lock")
}

func restarted(ctx context.Context, s *stage) (finding, error) {
	var r room
	servers, err := s.newMasters()
	if err != nil {
		return finding{}, err
	}
	newRedlock := func(processes []*process) *redlock {
		l := &redlock{key: s.key("lock"), ttl: s.ttl}
		for _, p := range processes {
			l.clients = append(l.clients, p.client)
		}
		return l
	}
	a, b := newRedlock(s.reach(servers, 2)), newRedlock(s.reach(servers, 0))
	if err := got(a.lock(ctx)); err != nil {
		return finding{}, err
	}
	r.enter()
	servers[2].restart()
	ok, err := b.lock(ctx)
	if err != nil {
		return finding{}, err
	}
	if ok {
		r.enter()
	}
	return crowded(&r, "B's majority shared only that master with A's")
}
