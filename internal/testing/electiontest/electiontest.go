// Package electiontest runs a fleet of candidates through faults of their leader, on any store, in
// virtual or in real time.
package electiontest

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// Process is what a candidate has of its own: a store, and its way to the server.
type Process struct {
	Store store.Leases
	Pause func() // nothing passes between the two, in silence
	Cut   func() // nothing passes, and connections break
	Mend  func() // ends both
	Die   func() // for good
	Close func()
}

// Test is a test of elections.
type Test struct {
	Start     func() Process
	TTL       time.Duration
	Rounds    int
	Handover  time.Duration // the longest time without a leader after a resignation
	Detection time.Duration // the same after a fault, beyond the TTL
}

const (
	size = 5
	role = "leader"
	// within is how long a test waits for a leader.
	within = 2 * time.Minute
)

type fleet struct {
	*testing.T
	test  Test
	terms chan *begun
	late  atomic.Int64 // the longest time that a call and its goroutine took

	mu         sync.Mutex
	candidates []*candidate // with the dead ones
	last       int64        // fence
}

// candidate is a process that would lead.
type candidate struct {
	Process
	election *election.Election
	locker   *lock.Locker
	resign   chan struct{}
	stop     context.CancelFunc
	done     chan struct{}
	term     *election.Term // the last one
}

// begun is a term that has begun.
type begun struct {
	by *candidate
	at time.Time
}

// Run has the leader of five candidates killed, paused, cut off, and resign, in turn. In all of
// them no two terms are valid at a time, fences grow, and the next one leads in time.
func (test Test) Run(t *testing.T) {
	f := &fleet{T: t, test: test, terms: make(chan *begun, 100)}
	defer f.watch()()
	for range size {
		f.join()
	}
	leader := f.next()
	for round := range test.Rounds {
		leader = f.round(round, leader)
	}
	for _, c := range f.candidates {
		c.leave()
	}
}

// candidate returns one that does not run.
func (f *fleet) candidate() *candidate {
	f.Helper()
	c := &candidate{Process: f.test.Start(), resign: make(chan struct{}), done: make(chan struct{})}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	if c.locker, err = lock.New(c.Store, "fleet", lock.WithTTL(f.test.TTL), lock.WithLogger(quiet)); err != nil {
		f.Fatal(err)
	}
	if c.election, err = election.New(c.locker, role, election.WithLogger(quiet)); err != nil {
		f.Fatal(err)
	}
	return c
}

// watch measures how late the machine and the server are, until end is called.
func (f *fleet) watch() (end func()) {
	pause := f.test.TTL / 200
	c := f.candidate()
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	go func() {
		defer close(c.done)
		for last := time.Now(); backoff.Sleep(ctx, pause); {
			_, _ = c.election.Leader(ctx)
			now := time.Now()
			f.late.Store(max(f.late.Load(), int64(now.Sub(last)-pause)))
			last = now
		}
	}()
	return c.leave
}

// join starts one more candidate.
func (f *fleet) join() {
	f.Helper()
	c := f.candidate()
	ctx, stop := context.WithCancel(context.Background())
	c.stop = stop
	f.mu.Lock()
	f.candidates = append(f.candidates, c)
	f.mu.Unlock()
	go func() {
		defer close(c.done)
		_ = c.election.Run(ctx, func(ctx context.Context, term *election.Term) error {
			f.begins(c, term)
			select {
			case <-ctx.Done():
			case <-c.resign:
			}
			return nil
		})
	}()
}

// begins checks that no other term is valid when a term begins, and that its fence is larger.
func (f *fleet) begins(c *candidate, term *election.Term) {
	now := time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	c.term = term
	for _, other := range f.candidates {
		if other == c {
			continue
		}
		if other.term != nil && other.term.Context().Err() == nil || other.election.IsLeader(context.Background()) == nil {
			f.Errorf("the term %v began while %v was valid", term.Fence(), other.term.Fence())
		}
	}
	if fence := term.Fence().Number; fence <= f.last {
		f.Errorf("fence %d after %d", fence, f.last)
	}
	f.last = term.Fence().Number
	f.terms <- &begun{c, now}
}

// next returns the next term that begins.
func (f *fleet) next() *begun {
	f.Helper()
	select {
	case b := <-f.terms:
		return b
	case <-time.After(within):
		f.Fatalf("there was no leader for %v", within)
		return nil
	}
}

// round ends the term of the leader by a fault or a resignation, and returns the next leader.
func (f *fleet) round(n int, leader *begun) *begun {
	f.Helper()
	<-time.After(rand.N(f.test.TTL))
	if len(f.terms) > 0 { // on a busy machine it may lose its lease
		return f.next()
	}
	c := leader.by
	how, longest := "kill", f.test.TTL+f.test.Detection
	end := c.Die
	switch n % 4 {
	case 1:
		how, longest = "resignation", f.test.Handover
		end = func() { c.resign <- struct{}{} }
	case 2:
		how, end = "pause", c.Pause
	case 3:
		how, end = "cut", c.Cut
	}
	since := time.Now()
	end()
	next := f.next()
	gap, late := next.at.Sub(since), time.Duration(f.late.Load())
	f.Logf("there was no leader for %v after a %s; a call took up to %v", gap, how, late)
	if gap > longest+5*late { // a gap is a sequence of calls
		f.Errorf("that is more than %v", longest)
	}
	switch how {
	case "kill":
		c.leave()
		f.mu.Lock()
		f.candidates = slices.DeleteFunc(f.candidates, func(x *candidate) bool { return x == c })
		f.mu.Unlock()
		f.join()
	case "pause", "cut":
		c.Mend()
	}
	return next
}

// leave ends a candidate.
func (c *candidate) leave() {
	c.stop() // first, so that one that has died does not campaign again
	<-c.done
	c.Mend()
	_ = c.locker.Close()
	c.Close()
}
