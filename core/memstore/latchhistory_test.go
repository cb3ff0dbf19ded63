package memstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// All waiters of open latches return, in any sequence of calls, and the store keeps nothing after
// the latches have expired.
func TestLatchHistories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, r := New(), rand.New(rand.NewPCG(1, 1))
		var wg sync.WaitGroup
		for i := range 300 {
			req := store.LatchRequest{Name: fmt.Sprint("l", r.IntN(3)), Count: 1 + r.IntN(40), TTL: time.Minute}
			patience := time.Duration(1+2*r.IntN(2000)) * 500 * time.Microsecond // nothing else happens when it ends
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				err := s.AwaitLatch(ctx, req)
				if n, _ := s.InspectLatch(context.Background(), req); (err == nil) != (n >= req.Count) {
					t.Errorf("AwaitLatch: %v, when %d of %d had come", err, n, req.Count)
				}
			})
			if r.IntN(4) == 0 {
				if _, err := s.CountDownLatch(t.Context(), req, fmt.Sprint(i)); err != nil {
					t.Errorf("CountDownLatch: %v", err)
				}
			}
			time.Sleep(time.Duration(1+r.IntN(20)) * time.Millisecond)
		}
		wg.Wait()
		if n := len(s.latches.gates); n != 0 {
			t.Errorf("%d gates without waiters", n)
		}
		sum := 0
		for i := range 3 {
			sum += len(s.latches.set(fmt.Sprint("l", i), s.now()))
		}
		if sum == 0 || sum != s.latches.participants {
			t.Errorf("%d participants, counted as %d", sum, s.latches.participants)
		}
		time.Sleep(time.Minute)
		s.latches.sets.Sweep(s.latches.sets.Len(), s.now())
		if n, m := s.latches.participants, s.latches.sets.Len(); n != 0 || m != 0 {
			t.Errorf("%d participants of %d latches are kept", n, m)
		}
	})
}

// If a latch expires before its waiters have left its gate, new waiters get a gate of the next
// latch, and keep it when the old ones leave.
func TestExpiredLatchHasANewGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New()
		req := store.LatchRequest{Name: "l", Count: 1, TTL: time.Second}
		var last *gate
		for range 3 {
			g := s.latches.enter(req, s.now)
			select {
			case <-g.open:
				t.Fatal("this latch has no participants")
			default:
			}
			if last != nil {
				s.latches.leave(req, last)
			}
			last = g
			if _, err := s.CountDownLatch(t.Context(), req, "a"); err != nil {
				t.Fatal(err)
			}
			<-g.open
			time.Sleep(time.Second)
		}
	})
}

func TestALatchHasMaxParticipants(t *testing.T) {
	t.Parallel()
	s := New(WithMaxParticipants(2 * store.MaxParticipants))
	req := store.LatchRequest{Name: "l", Count: store.MaxParticipants, TTL: time.Hour}
	if n, err := s.CountDownLatch(t.Context(), req, "0"); n != 1 || err != nil {
		t.Fatalf("the first: %d, %v", n, err)
	}
	set := s.latches.set("l", s.now())
	for i := range store.MaxParticipants - 2 {
		set[strconv.Itoa(i+1)] = struct{}{}
	}
	if n, err := s.CountDownLatch(t.Context(), req, "last"); n != store.MaxParticipants || err != nil {
		t.Errorf("the last: %d, %v", n, err)
	}
	if n, err := s.CountDownLatch(t.Context(), req, "late"); !errors.Is(err, store.ErrFull) {
		t.Errorf("one too many: %d, %v", n, err)
	}
	if n, err := s.CountDownLatch(t.Context(), req, "0"); n != store.MaxParticipants || err != nil {
		t.Errorf("the first one again: %d, %v", n, err)
	}
}
