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

const ttl = 30 * time.Second

// log records the calls of a keeper.
type log struct {
	mu      sync.Mutex
	batches []int
	renewed map[int][]time.Duration // when each renewal was sent, since the start
	lost    []int
	holds   map[int]hold
	over    map[int]bool // ended in this process
	start   time.Time
	reply   func(id int) (bool, error)
}

type hold struct {
	id int
	*log
	entry *lease.Entry[hold]
}

// hold returns the hold with a number, which is always the same.
func (l *log) hold(id int) hold {
	h, ok := l.holds[id]
	if !ok {
		h = hold{id, l, new(lease.Entry[hold])}
		l.holds[id] = h
	}
	return h
}

func (hold) TTL() time.Duration          { return ttl }
func (h hold) Due() bool                 { return !h.over[h.id] }
func (h hold) Entry() *lease.Entry[hold] { return h.entry }

func (h hold) Renewed(sent time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.renewed[h.id] = append(h.renewed[h.id], sent.Sub(h.start))
}

func (h hold) Lost() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lost = append(h.lost, h.id)
}

func newKeeper() (*log, *lease.Keeper[hold]) {
	l := &log{renewed: map[int][]time.Duration{}, holds: map[int]hold{}, over: map[int]bool{}, start: time.Now(), reply: func(int) (bool, error) { return true, nil }}
	return l, lease.NewKeeper(func(_ context.Context, batch []hold) ([]bool, error) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.batches = append(l.batches, len(batch))
		held := make([]bool, len(batch))
		for i, h := range batch {
			var err error
			if held[i], err = l.reply(h.id); err != nil {
				return nil, err
			}
		}
		return held, nil
	})
}

func TestRenewsAtAThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := newKeeper()
		k.Add(l.hold(1), time.Now())
		time.Sleep(ttl + time.Second)
		synctest.Wait()
		k.Remove(l.hold(1))
		time.Sleep(10 * ttl)
		synctest.Wait()
		if want := []time.Duration{ttl / 3, 2 * ttl / 3, ttl}; !slices.Equal(l.renewed[1], want) {
			t.Errorf("renewed at %v, want %v and no more after the removal", l.renewed[1], want)
		}
		if k.Len() != 0 {
			t.Errorf("keeps %d holds", k.Len())
		}
	})
}

// The timer is not stopped for a removed hold, and is reset for one that is due sooner.
func TestAddAndRemove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := newKeeper()
		began := time.Now()
		k.Add(l.hold(1), began)
		k.Remove(l.hold(1))
		time.Sleep(time.Second)
		k.Add(l.hold(2), began.Add(time.Second))
		k.Add(l.hold(3), began.Add(-time.Second))
		time.Sleep(ttl / 2)
		synctest.Wait()
		if want := []time.Duration{ttl/3 + time.Second}; !slices.Equal(l.renewed[2], want) {
			t.Errorf("renewed at %v, want %v", l.renewed[2], want)
		}
		if want := []time.Duration{ttl/3 - time.Second}; !slices.Equal(l.renewed[3], want) {
			t.Errorf("renewed at %v, want %v", l.renewed[3], want)
		}
		k.Remove(l.hold(2))
		k.Remove(l.hold(3))
		k.Rest()
		k.Add(l.hold(4), time.Now())
		again := time.Since(began) + ttl/3
		time.Sleep(ttl/3 + time.Second)
		synctest.Wait()
		if want := []time.Duration{again}; !slices.Equal(l.renewed[4], want) || len(l.renewed[1]) > 0 {
			t.Errorf("after Rest renewed at %v, want %v", l.renewed[4], want)
		}
		k.Remove(l.hold(4))
	})
}

func TestBatchesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := newKeeper()
		for id := range 250 {
			k.Add(l.hold(id), time.Now())
		}
		time.Sleep(ttl/3 + time.Second)
		synctest.Wait()
		slices.Sort(l.batches)
		if want := []int{50, 100, 100}; !slices.Equal(l.batches, want) {
			t.Errorf("sent batches of %v, want %v", l.batches, want)
		}
		for id := range 250 {
			k.Remove(l.hold(id))
		}
	})
}

// While the store is down, a renewal is tried several times before the TTL ends.
func TestErrorsAreRetriedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := newKeeper()
		tries := 0
		l.reply = func(int) (bool, error) {
			tries++
			return true, errors.New("down")
		}
		k.Add(l.hold(1), time.Now())
		time.Sleep(ttl)
		synctest.Wait()
		if tries < 5 || len(l.lost) > 0 || len(l.renewed) > 0 {
			t.Errorf("%d tries in one TTL, lost %v, renewed %v", tries, l.lost, l.renewed)
		}
		l.mu.Lock()
		l.reply = func(int) (bool, error) { return true, nil }
		l.mu.Unlock()
		time.Sleep(ttl / 4)
		synctest.Wait()
		if len(l.renewed[1]) != 1 {
			t.Errorf("not renewed after the outage")
		}
		k.Remove(l.hold(1))
	})
}

func TestLostIsCalledOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := newKeeper()
		l.reply = func(id int) (bool, error) { return id != 2, nil }
		for id := range 4 {
			k.Add(l.hold(id), time.Now())
		}
		time.Sleep(2 * ttl)
		synctest.Wait()
		if !slices.Equal(l.lost, []int{2}) || len(l.renewed[2]) > 0 || k.Len() != 3 {
			t.Errorf("lost %v, renewed %v, keeps %d", l.lost, l.renewed, k.Len())
		}
		for id := range 4 {
			k.Remove(l.hold(id))
		}
	})
}

func TestRemovedInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newKeeper()
		release := make(chan struct{})
		k := lease.NewKeeper(func(context.Context, []hold) ([]bool, error) {
			<-release
			return []bool{false}, nil
		})
		k.Add(l.hold(1), time.Now())
		time.Sleep(ttl/3 + time.Second)
		synctest.Wait()
		k.Remove(l.hold(1))
		close(release)
		k.Wait()
		time.Sleep(ttl)
		synctest.Wait()
		if len(l.lost) > 0 || k.Len() != 0 {
			t.Errorf("lost %v, keeps %d", l.lost, k.Len())
		}
	})
}

// If a batch fails in part, confirmed renewals count, and the rest is retried soon.
func TestPartOfABatchFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := newKeeper()
		tries := 0
		k := lease.NewKeeper(func(_ context.Context, batch []hold) ([]bool, error) {
			tries++
			held := make([]bool, len(batch))
			for i, h := range batch {
				held[i] = h.id == 1
			}
			return held, errors.New("no reply for the other")
		})
		k.Add(l.hold(1), time.Now())
		k.Add(l.hold(2), time.Now())
		time.Sleep(ttl/3 + ttl/6)
		synctest.Wait()
		if len(l.renewed[1]) != 1 || len(l.renewed[2]) != 0 || len(l.lost) != 0 || tries < 3 || k.Len() != 2 {
			t.Errorf("renewed %v, lost %v, in %d tries; keeps %d", l.renewed, l.lost, tries, k.Len())
		}
		k.Remove(l.hold(1))
		k.Remove(l.hold(2))
	})
}

// A lease that has ended in the process is lost, and not renewed. Without a reply for each, those
// without one are retried.
func TestOnlyDueLeasesAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, k := newKeeper()
		l.over[2] = true
		k.Add(l.hold(1), time.Now())
		k.Add(l.hold(2), time.Now())
		time.Sleep(ttl/3 + time.Second)
		synctest.Wait()
		if !slices.Equal(l.lost, []int{2}) || len(l.renewed[1]) != 1 || !slices.Equal(l.batches, []int{1}) {
			t.Errorf("lost %v, renewed %v in batches of %v", l.lost, l.renewed, l.batches)
		}
		k.Remove(l.hold(1))

		tries := 0
		k = lease.NewKeeper(func(context.Context, []hold) ([]bool, error) {
			tries++
			return nil, nil
		})
		k.Add(l.hold(3), time.Now())
		time.Sleep(ttl / 2)
		synctest.Wait()
		if tries < 2 || k.Len() != 1 {
			t.Errorf("%d tries without a reply, keeps %d", tries, k.Len())
		}
		k.Remove(l.hold(3))
	})
}
