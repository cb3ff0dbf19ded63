package lease_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
)

// server renews hold after hold, also for callers that have timed out.
type server struct {
	busy        chan struct{} // full while it works, or is silent
	cost        time.Duration // of a hold
	mu          sync.Mutex
	flying, max int
	sent        []time.Time
	sizes       []int
	fail        bool
}

const replyTimeout = 250 * time.Millisecond

func (s *server) renew(_ context.Context, batch []hold) ([]bool, error) {
	s.mu.Lock()
	s.flying++
	s.max = max(s.max, s.flying)
	s.sent, s.sizes = append(s.sent, time.Now()), append(s.sizes, len(batch))
	fail := s.fail
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.busy <- struct{}{}
		time.Sleep(time.Duration(len(batch)) * s.cost)
		<-s.busy
		close(done)
	}()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.flying--
	}()
	select {
	case <-done:
		if fail {
			return nil, errors.New("down")
		}
		return slices.Repeat([]bool{true}, len(batch)), nil
	case <-time.After(replyTimeout):
		return nil, errors.New("no reply in time")
	}
}

// silence stops the server for some time.
func (s *server) silence(d time.Duration) {
	s.busy <- struct{}{}
	time.Sleep(d)
	<-s.busy
}

// removeAll removes n holds from a keeper, and lets its goroutines end.
func removeAll(k *lease.Keeper[hold], l *log, n int) {
	for id := range n {
		k.Remove(l.hold(id))
	}
	k.Wait()
	time.Sleep(time.Minute)
}

// Many holds outlive a silence of the server when they are due, even if renewing all takes seconds.
func TestManyHoldsOutliveASilence(t *testing.T) {
	const n = 10_000
	synctest.Test(t, func(t *testing.T) {
		l, _ := newKeeper()
		s := &server{busy: make(chan struct{}, 1), cost: 300 * time.Microsecond} // 3 s for all
		k := lease.NewKeeper(s.renew)
		for id := range n {
			k.Add(l.hold(id), time.Now())
			if id%100 == 99 {
				time.Sleep(30 * time.Millisecond) // they were acquired over three seconds
			}
		}
		time.Sleep(time.Until(l.start.Add(ttl / 3)))
		s.silence(8 * time.Second)
		time.Sleep(time.Until(l.start.Add(4 * ttl)))
		synctest.Wait()
		l.mu.Lock()
		lost := 0
		for id := range n {
			last := time.Duration(id/100) * 30 * time.Millisecond // when it was acquired
			for _, at := range l.renewed[id] {
				if at-last > ttl {
					break
				}
				last = at
			}
			if last < 3*ttl {
				lost++
			}
		}
		l.mu.Unlock()
		if lost > 0 {
			t.Errorf("%d of %d are lost", lost, n)
		}
		removeAll(k, l, n)
	})
}

// Few batches are in flight at a time, and somewhat more while some of them hang.
func TestBatchesInFlightAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		cost time.Duration
		fail bool
		max  int
	}{
		"quick": {10 * time.Microsecond, false, 4},
		"slow":  {2 * time.Millisecond, false, 16},
		"down":  {10 * time.Microsecond, true, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _ := newKeeper()
				s := &server{busy: make(chan struct{}, 100), cost: c.cost, fail: c.fail}
				k := lease.NewKeeper(s.renew)
				for id := range 10_000 {
					k.Add(l.hold(id), l.start.Add(-ttl/3)) // all are overdue
				}
				time.Sleep(ttl / 2)
				synctest.Wait()
				s.mu.Lock()
				if s.max > c.max || len(s.sent) < 100 {
					t.Errorf("%d batches in flight, want %d at most; %d in all", s.max, c.max, len(s.sent))
				}
				s.mu.Unlock()
				removeAll(k, l, 10_000)
			})
		})
	}
}

// Holds that expire first are renewed first.
func TestMostUrgentFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newKeeper()
		s := &server{busy: make(chan struct{}, 1), cost: 100 * time.Microsecond}
		k := lease.NewKeeper(s.renew)
		s.busy <- struct{}{}   // so that all are added before the first renewal
		for id := range 2000 { // not in the order of their ends
			k.Add(l.hold(id), l.start.Add(-ttl/3-time.Duration(id*7919%2000)*ttl/8000))
		}
		time.Sleep(100 * time.Millisecond)
		<-s.busy
		time.Sleep(ttl / 6)
		synctest.Wait()
		type renewed struct{ age, at time.Duration }
		var all []renewed
		l.mu.Lock()
		for id := range 2000 {
			if len(l.renewed[id]) > 0 {
				all = append(all, renewed{time.Duration(id * 7919 % 2000), l.renewed[id][0]})
			}
		}
		l.mu.Unlock()
		slices.SortFunc(all, func(a, b renewed) int { return int(b.age - a.age) })
		early := 0
		for _, r := range all[:len(all)/4] {
			for _, other := range all[len(all)*3/4:] {
				if other.at < r.at {
					early++
				}
			}
		}
		if pairs := (len(all) / 4) * (len(all) / 4); len(all) < 1000 || early > pairs/3 {
			t.Errorf("of %d renewed, %d of %d pairs in the wrong order", len(all), early, pairs)
		}
		removeAll(k, l, 2000)
	})
}

// Holds that were acquired together are not renewed together.
func TestRenewalsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newKeeper()
		s := &server{busy: make(chan struct{}, 100), cost: time.Microsecond}
		k := lease.NewKeeper(s.renew)
		for id := range 10_000 {
			k.Add(l.hold(id), l.start)
		}
		time.Sleep(5 * ttl)
		synctest.Wait()
		s.mu.Lock()
		most, all := 0, 0
		for i, from := range s.sent {
			n := 0
			for j := i; j < len(s.sent) && s.sent[j].Sub(from) < ttl/60; j++ { // a twentieth of a period
				n += s.sizes[j]
			}
			most, all = max(most, n), all+s.sizes[i]
		}
		s.mu.Unlock()
		if most > 3000 || all > 10_000*18 {
			t.Errorf("%d of 10,000 holds are renewed within a twentieth of the period; %d renewals in 15 periods", most, all)
		}
		removeAll(k, l, 10_000)
	})
}
