package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/redisfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// locker is everything that a service does to use locks.
func (s *stage) locker(ctx context.Context, p *process) (*lock.Locker, error) {
	st, err := s.store(ctx, p)
	if err != nil {
		return nil, err
	}
	return s.newLocker(st, p)
}

// store returns a store that is connected, and has loaded its scripts: a process does that once.
func (s *stage) store(ctx context.Context, p *process) (*redisstore.Store, error) {
	st, err := redisstore.New(p.client, redisstore.WithPrefix(s.prefix),
		redisstore.WithTimeout(5*time.Second), // for a busy machine
		redisstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	s.closer = append(s.closer, func() { _ = st.Close() })
	s.pace.loads.Lock()
	defer s.pace.loads.Unlock()
	for {
		_, err := st.InspectLease(ctx, "trial", key)
		if !errors.Is(err, store.ErrUnavailable) || wait(ctx, pause) != nil {
			return st, err
		}
	}
}

func (s *stage) newLocker(st store.Leases, processes ...*process) (*lock.Locker, error) {
	locker, err := lock.New(st, "trial", lock.WithTTL(s.ttl), lock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	s.closer = append(s.closer, func() {
		for _, p := range processes {
			p.revive() // so that it can release what it holds
		}
		_ = locker.Close()
	})
	return locker, nil
}

// giveBack releases a lock. If servers reply too late, it is retried in the background.
func giveBack(ctx context.Context, lease *lock.Lease) error {
	if err := lease.Unlock(ctx); !errors.Is(err, store.ErrUnavailable) {
		return err
	}
	return nil
}

// pause is how long a process waits before it tries again.
const pause = 50 * time.Millisecond

// patiently acquires the lock, and retries if servers reply too late: a demonstration may run on a busy
// machine.
func patiently(
	ctx context.Context, take func(ctx context.Context, key string) (*lock.Lease, error),
) (*lock.Lease, error) {
	for {
		lease, err := take(ctx, key)
		if !errors.Is(err, store.ErrUnavailable) || wait(ctx, pause) != nil {
			return lease, err
		}
	}
}

// lockers returns the lockers of several processes.
func (s *stage) lockers(ctx context.Context, processes ...*process) ([]*lock.Locker, error) {
	lockers := make([]*lock.Locker, len(processes))
	for i, p := range processes {
		var err error
		if lockers[i], err = s.locker(ctx, p); err != nil {
			return nil, err
		}
	}
	return lockers, s.begin(ctx)
}

const key = "42"

func keeperAfterDeath(ctx context.Context, s *stage) (finding, error) {
	dying := s.process()
	l, err := s.lockers(ctx, dying, s.process())
	if err != nil {
		return finding{}, err
	}
	if _, err := patiently(ctx, l[0].Lock); err != nil {
		return finding{}, err
	}
	dying.dieBefore("")
	start := time.Now()
	patience, cancel := context.WithTimeout(ctx, 10*s.ttl)
	defer cancel()
	lease, err := l[1].Lock(patience, key)
	if err != nil {
		return finding{broken, fmt.Sprintf("B did not get the lock: %v", err)}, ctx.Err()
	}
	text := fmt.Sprintf("the lock and its expiry are one step: B had it after %v", time.Since(start).Round(time.Millisecond))
	return finding{sound, text}, lease.Unlock(ctx)
}

func keeperAndClocks(ctx context.Context, s *stage) (finding, error) {
	b := s.process()
	l, err := s.lockers(ctx, s.process(), b)
	if err != nil {
		return finding{}, err
	}
	lease, err := patiently(ctx, l[0].Lock)
	if err != nil {
		return finding{}, err
	}
	_, err = l[1].TryLock(ctx, key)
	if !errors.Is(err, lock.ErrNotAcquired) {
		return finding{broken, "B got the lock"}, err
	}
	if times := b.timesSent(); len(times) > 0 {
		return finding{broken, fmt.Sprintf("B sent the time of its clock: %v", times)}, nil
	}
	return finding{sound, "B was refused: clients send durations, never times of their clocks"}, lease.Unlock(ctx)
}

func keeperAndHeirs(ctx context.Context, s *stage) (finding, error) {
	dead := s.process()
	l, err := s.lockers(ctx, dead, s.process(), s.process())
	if err != nil {
		return finding{}, err
	}
	if _, err := patiently(ctx, l[0].Lock); err != nil {
		return finding{}, err
	}
	dead.dieBefore("")
	var r room
	done := make(chan error, 2)
	for _, heir := range l[1:] {
		go func() {
			lease, err := patiently(ctx, heir.Lock)
			if err != nil {
				done <- err
				return
			}
			r.enter()
			err = wait(lease.Context(), s.ttl/10)
			r.leave()
			done <- errors.Join(err, lease.Unlock(ctx))
		}()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		return finding{broken, "one of them lost the lock, or could not release it"}, err
	}
	if r.crowd() != 1 {
		return finding{broken, "two holders"}, nil
	}
	return finding{sound, "B and C had the lock one after the other, and released it"}, nil
}

func keeperLateRelease(ctx context.Context, s *stage) (finding, error) {
	slow := s.process()
	l, err := s.lockers(ctx, slow, s.process(), s.process())
	if err != nil {
		return finding{}, err
	}
	a, err := patiently(ctx, l[0].Lock)
	if err != nil {
		return finding{}, err
	}
	late, err := slow.lateCall(ctx, "", a.Unlock)
	if err != nil {
		return finding{}, err
	}
	b, err := patiently(ctx, l[1].Lock) // when A's lease is over
	if err != nil {
		return finding{}, err
	}
	told := late()
	if err := b.Verify(ctx); err != nil {
		return finding{broken, fmt.Sprintf("B was told %v", err)}, nil
	}
	if _, err := l[2].TryLock(ctx, key); !errors.Is(err, lock.ErrNotAcquired) {
		return finding{broken, "C got the lock: two holders"}, err
	}
	if !errors.Is(told, lock.ErrLost) {
		return finding{broken, fmt.Sprintf("A was told %v", told)}, nil
	}
	return finding{sound, "A got ErrLost; B kept the lock, C was refused"}, b.Unlock(ctx)
}

func keeperOutlived(ctx context.Context, s *stage) (finding, error) {
	l, err := s.lockers(ctx, s.process(), s.process())
	if err != nil {
		return finding{}, err
	}
	a, err := patiently(ctx, l[0].Lock)
	if err != nil {
		return finding{}, err
	}
	work := 5 * s.ttl / 2
	patience, cancel := context.WithTimeout(ctx, work)
	defer cancel()
	if _, err := l[1].Lock(patience, key); !errors.Is(err, lock.ErrNotAcquired) {
		return finding{broken, "B got the lock while A worked"}, err
	}
	if err := errors.Join(a.Context().Err(), a.Verify(ctx), a.Unlock(ctx)); err != nil {
		return finding{broken, fmt.Sprintf("A lost the lock: %v", err)}, nil
	}
	return finding{sound, fmt.Sprintf("A's lease of %v was renewed for %v of work; B waited", s.ttl, work)}, nil
}

func keeperPushed(ctx context.Context, s *stage) (finding, error) {
	waiter := s.process()
	l, err := s.lockers(ctx, s.process(), waiter)
	if err != nil {
		return finding{}, err
	}
	a, err := patiently(ctx, l[0].Lock)
	if err != nil {
		return finding{}, err
	}
	before := waiter.writes.Load()
	locked := make(chan error, 1)
	var b *lock.Lease
	go func() {
		var err error
		b, err = l[1].Lock(ctx, key)
		locked <- err
	}()
	if err := wait(ctx, s.ttl); err != nil {
		return finding{}, err
	}
	if err := a.Unlock(ctx); err != nil {
		return finding{}, err
	}
	if err := <-locked; err != nil {
		return finding{}, err
	}
	return requests(waiter.writes.Load()-before, s.ttl), b.Unlock(ctx)
}

func keeperPausedWriter(ctx context.Context, s *stage) (finding, error) {
	slow, quick := s.process(), s.process()
	l, err := s.lockers(ctx, slow, quick)
	if err != nil {
		return finding{}, err
	}
	a, err := patiently(ctx, l[0].Lock)
	if err != nil {
		return finding{}, err
	}
	late, err := slow.lateCall(ctx, "", func(ctx context.Context) error { return s.save(ctx, slow, "A's", a) })
	if err != nil {
		return finding{}, err
	}
	b, err := patiently(ctx, l[1].Lock) // when A's lease is over
	if err != nil {
		return finding{}, err
	}
	if err := errors.Join(s.save(ctx, quick, "B's", b), b.Unlock(ctx)); err != nil {
		return finding{}, err
	}
	if err := late(); !errors.Is(err, fence.ErrStale) {
		return finding{broken, fmt.Sprintf("A's write was not refused: %v", err)}, nil
	}
	text, err := quick.client.Get(ctx, s.document()).Result()
	if err != nil || text != "B's" {
		return finding{broken, "A, awake again, overwrote what B had written"}, err
	}
	return finding{fenced, "A's write was refused: its fence was lower than B's"}, nil
}

// save writes the document with the fence of a lease. It does not check the lease's context, like a
// process that was paused after it had checked.
func (s *stage) save(ctx context.Context, p *process, text string, lease *lock.Lease) error {
	documents, err := redisfence.New(p.client, redisfence.WithPrefix(s.key("fence")))
	if err != nil {
		return err
	}
	return documents.Set(ctx, s.document(), []byte(text), 0, lease.Fence())
}

func (s *stage) document() string { return s.key("document") }

func keeperFailover(ctx context.Context, s *stage) (finding, error) {
	pair, address, err := s.newPair()
	if err != nil {
		return finding{}, err
	}
	l, err := s.lockers(ctx, s.processOn(address), s.processOn(address))
	if err != nil {
		return finding{}, err
	}
	// The document is on another server, and not lost.
	documents := s.process()
	a, err := patiently(ctx, l[0].Lock)
	if err != nil {
		return finding{}, err
	}
	pair.failover()
	b, err := patiently(ctx, l[1].Lock)
	if err != nil {
		return finding{}, err
	}
	both := time.Now()
	if err := s.save(ctx, documents, "B's", b); err != nil {
		return finding{}, err
	}
	if err := s.save(ctx, documents, "A's", a); !errors.Is(err, fence.ErrStale) {
		return finding{broken, fmt.Sprintf("A's write was not refused: %v", err)}, nil
	}
	if err := await(ctx, a.Context().Done()); err != nil {
		return finding{}, err
	}
	if err := context.Cause(a.Context()); !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrExpired) {
		return finding{broken, fmt.Sprintf("A was told %v", err)}, nil
	}
	text := fmt.Sprintf("two holders for %v, until A's renewal; A's write was refused: its fence was lower than B's",
		time.Since(both).Round(time.Millisecond))
	return finding{fenced, text}, b.Unlock(ctx)
}

func keeperRestarted(ctx context.Context, s *stage) (finding, error) {
	s.ttl *= 2 // masters have a tenth of it to reply
	servers, err := s.newMasters()
	if err != nil {
		return finding{}, err
	}
	aProcesses := s.reach(servers, 0)
	aLocker, err := s.quorum(ctx, aProcesses)
	if err != nil {
		return finding{}, err
	}
	bLocker, err := s.quorum(ctx, s.reach(servers, 0))
	if err == nil {
		err = s.begin(ctx)
	}
	if err != nil {
		return finding{}, err
	}
	for _, p := range aProcesses[3:] {
		p.dieBefore("")
	}
	a, err := patiently(ctx, aLocker.Lock)
	if err != nil {
		return finding{}, err
	}
	servers[2].restart()
	b, err := patiently(ctx, bLocker.Lock)
	if err != nil {
		return finding{}, err
	}
	if a.Context().Err() == nil {
		return finding{broken, "B's majority shared only that master with A's: two holders"}, nil
	}
	if b.Fence().Number <= a.Fence().Number {
		return finding{broken, "B's fence is not above A's"}, nil
	}
	return finding{sound, "a master that may have forgotten has no vote: B got the lock when A's lease was over"}, giveBack(ctx, b)
}

// quorum is like locker, on several servers.
func (s *stage) quorum(ctx context.Context, processes []*process) (*lock.Locker, error) {
	var members []quorum.Member
	for _, p := range processes {
		st, err := s.store(ctx, p)
		if err != nil {
			return nil, err
		}
		members = append(members, st)
	}
	q, err := quorum.New(members...)
	if err != nil {
		return nil, err
	}
	s.closer = append(s.closer, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = q.Shutdown(ctx)
	})
	return s.newLocker(q, processes...)
}
