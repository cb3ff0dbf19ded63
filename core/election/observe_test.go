package election_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

var errDown = store.ErrUnavailable

func TestLeader(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		_, err := second.Leader(t.Context())
		wantError(t, "Leader of a vacant role", err, election.ErrNoLeader)
		reader := must(first.locker.RLock(t.Context(), role))
		_, err = second.Leader(t.Context())
		wantError(t, "Leader of a role that others read", err, election.ErrNoLeader)
		_ = reader.Unlock(t.Context())
		term := first.campaign(t)
		time.Sleep(time.Minute)
		leader, err := second.Leader(t.Context())
		want := election.Leader{Label: "first", Fence: term.Fence().Number, Age: time.Minute}
		if err != nil || leader != want {
			t.Errorf("Leader: %+v, %v; want %+v", leader, err, want)
		}
		second.store.Break(storetest.InspectLease, storetest.Down)
		_, err = second.Leader(t.Context())
		wantError(t, "Leader", err, errDown)
		_ = term.Resign(t.Context())
	})
}

// seen is the report to an observer.
type seen struct {
	label string
	err   error
	at    time.Time
}

// observe starts an observer.
func (p process) observe(ctx context.Context) <-chan seen {
	all := make(chan seen, 100)
	go func() {
		defer close(all)
		for leader, err := range p.Observe(ctx) {
			all <- seen{leader.Label, err, time.Now()}
		}
	}()
	synctest.Wait()
	return all
}

// An observer sees each change, within a third of the TTL; a candidate its own at once.
func TestObserve(t *testing.T) {
	inBubble(t, func(t *testing.T, first, second process) {
		ctx, stop := context.WithCancel(t.Context())
		own, others := first.observe(ctx), second.observe(ctx)
		expect := func(label string, err error, who <-chan seen, within time.Duration) {
			t.Helper()
			began := time.Now()
			s, open := <-who
			if !open || s.label != label || !errors.Is(s.err, err) || s.at.Sub(began) > within {
				t.Errorf("seen %q, %v after %v; want %q, %v within %v",
					s.label, s.err, s.at.Sub(began), label, err, within)
			}
		}
		expect("", nil, own, 0)
		expect("", nil, others, 0)
		for range 10 {
			term := first.campaign(t)
			expect("first", nil, own, 0)
			expect("first", nil, others, ttl/3)
			time.Sleep(time.Minute)
			_ = term.Resign(t.Context())
			expect("", nil, own, 0)
			expect("", nil, others, ttl/3)
		}

		// A term that is lost.
		term := first.campaign(t)
		expect("first", nil, own, 0)
		expect("first", nil, others, ttl/3)
		first.store.Break(storetest.Any, storetest.Down)
		expect("", errDown, own, ttl/3)
		expect("", nil, others, ttl+time.Second+ttl/3)
		time.Sleep(time.Minute)
		first.store.Mend(storetest.Any)
		expect("", nil, own, ttl/3)
		wantError(t, "Resign", term.Resign(t.Context()), lock.ErrLost)

		// The leader of which it did not learn during an outage.
		second.store.Break(storetest.InspectLease, storetest.Down)
		expect("", errDown, others, ttl/3)
		term = first.campaign(t)
		expect("first", nil, own, 0)
		time.Sleep(time.Minute)
		second.store.Mend(storetest.Any)
		expect("first", nil, others, ttl/3)

		time.Sleep(time.Hour)
		synctest.Wait()
		if len(own)+len(others) > 0 {
			t.Error("more than the changes is seen")
		}
		stop()
		for s := range own {
			t.Errorf("seen at the end: %+v", s)
		}
		for s := range others {
			t.Errorf("seen at the end: %+v", s)
		}
		_ = term.Resign(t.Context())
	})
}

// An observer asks the store three times in a TTL.
func TestObserveAsksSeldom(t *testing.T) {
	inBubble(t, func(t *testing.T, p, _ process) {
		ctx, stop := context.WithTimeout(t.Context(), time.Hour)
		defer stop()
		for _, err := range p.Observe(ctx) {
			wantError(t, "Observe", err, nil)
		}
		least := int(time.Hour / (ttl / 3))
		if n := p.store.Calls(storetest.InspectLease); n < least || n > least*5/4+1 {
			t.Errorf("%d calls in an hour, want %d and up to a quarter more", n, least)
		}
	})
}

// An observer that breaks, or whose store is closed, ends.
func TestObserveEnds(t *testing.T) {
	inBubble(t, func(t *testing.T, p, _ process) {
		for _, err := range p.Observe(t.Context()) {
			wantError(t, "Observe", err, nil)
			break
		}
		all := p.observe(t.Context())
		<-all
		_ = p.store.Close()
		s := <-all
		wantError(t, "a closed store", s.err, lock.ErrClosed)
		if s, open := <-all; open {
			t.Errorf("after it: %+v", s)
		}
	})
}
