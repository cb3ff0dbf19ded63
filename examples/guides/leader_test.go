package guides_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// end ends the program, in ten seconds at most: first the requests, then the leader, then the store.
func end(server *http.Server, st store.Store) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(
		server.Shutdown(ctx), // waits for the handlers
		st.Shutdown(ctx),     // ends the contexts of leases, and waits until they are released
		st.Close(),
	)
}

func Example_leader() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New(client), for several processes
	leaders, err := lock.New(store, "leaders", lock.WithTTL(10*time.Second))
	if err != nil {
		panic(err)
	}
	e, err := election.New(leaders, "scheduler")
	if err != nil {
		panic(err)
	}
	began := make(chan struct{})
	schedule := func(_ context.Context, term fence.Token) error {
		fmt.Println("leads with a fence:", term.Number > 0)
		close(began)
		return nil
	}
	go func() {
		<-began
		if err := end(new(http.Server), store); err != nil {
			panic(err)
		}
	}()
	err = e.Run(ctx, func(ctx context.Context, term *election.Term) error {
		if err := schedule(ctx, term.Fence()); err != nil {
			return err // another process leads, if there is one; this one campaigns again after a second
		}
		<-ctx.Done()
		return context.Cause(ctx)
	})
	fmt.Println("closed:", errors.Is(err, lock.ErrClosed))
	// Output:
	// leads with a fence: true
	// closed: true
}

// candidate is a process that would lead.
type candidate struct {
	store   *storetest.Faulty // its way to the shared one
	leaders *lock.Locker
	terms   chan time.Time // when it began to lead
	ended   chan termEnd   // of its context
	fence   chan fence.Token
	stop    context.CancelFunc
	done    chan struct{} // closed when it has stopped
}

type termEnd struct {
	at  time.Time
	why error
}

func campaign(t *testing.T, shared *memstore.Store, ttl time.Duration) *candidate {
	c := &candidate{
		store: storetest.NewFaulty(shared), terms: make(chan time.Time, 10), ended: make(chan termEnd, 10),
		fence: make(chan fence.Token, 10), done: make(chan struct{}),
	}
	c.leaders = must(lock.New(c.store, "leaders", lock.WithTTL(ttl), lock.WithLogger(slog.New(slog.DiscardHandler))))
	ctx, stop := context.WithCancel(t.Context())
	c.stop = stop
	go func() {
		defer close(c.done)
		_ = must(election.New(c.leaders, "scheduler")).Run(ctx, func(ctx context.Context, term *election.Term) error {
			c.terms <- time.Now()
			c.fence <- term.Fence()
			<-ctx.Done()
			c.ended <- termEnd{time.Now(), context.Cause(ctx)}
			return context.Cause(ctx)
		})
	}()
	return c
}

// How long there is no leader, in each case. There is one leader at a time in all of them.
func TestGapsBetweenLeaders(t *testing.T) {
	const ttl = 10 * time.Second
	inBubble := func(name string, test func(t *testing.T, first, second *candidate)) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				shared := memstore.New()
				first := campaign(t, shared, ttl)
				synctest.Wait()
				second := campaign(t, shared, ttl)
				time.Sleep(time.Hour) // renewed all the time
				if len(first.terms) != 1 || len(first.ended) != 0 || len(second.terms) != 0 {
					t.Fatal("the first is not the only leader")
				}
				test(t, first, second)
				first.store.Mend(storetest.Any)
				for _, c := range []*candidate{first, second} {
					c.stop()
					<-c.done
				}
				_ = shared.Close()
			})
		})
	}
	next := func(t *testing.T, first, second *candidate, since time.Time, most time.Duration, why error) {
		t.Helper()
		began := <-second.terms
		if gap := began.Sub(since); gap > most {
			t.Errorf("there was no leader for %v, at most %v is promised", gap, most)
		}
		synctest.Wait()
		select {
		case end := <-first.ended:
			if !errors.Is(end.why, why) || end.at.After(began) {
				t.Errorf("the first ended with %v at %v, want %v before %v", end.why, end.at, why, began)
			}
		default:
			t.Error("the first still leads")
		}
		if before, now := <-first.fence, <-second.fence; now.Number <= before.Number {
			t.Errorf("the fence is %v after %v", now, before)
		}
	}
	inBubble("the process ends", func(t *testing.T, first, second *candidate) {
		first.stop()
		next(t, first, second, time.Now(), 0, context.Canceled)
	})
	inBubble("the process is cut off, or dies", func(t *testing.T, first, second *candidate) {
		first.store.Break(storetest.Any, storetest.Down)
		next(t, first, second, time.Now(), ttl, lock.ErrExpired)
	})
	inBubble("its store is shut down", func(t *testing.T, first, second *candidate) {
		_ = first.leaders.Close() // as by the store's Shutdown, which both share here
		next(t, first, second, time.Now(), 0, lock.ErrClosed)
		<-first.done
	})
	inBubble("an operator ends it", func(t *testing.T, first, second *candidate) {
		state := must(second.leaders.Inspect(t.Context(), "scheduler"))
		if ended := must(second.leaders.ForceUnlock(t.Context(), "scheduler", state.Holders[0].Fence)); !ended {
			t.Fatal("there is no such leader")
		}
		next(t, first, second, time.Now(), 0, lock.ErrLost)
	})
	inBubble("a short outage", func(t *testing.T, first, second *candidate) {
		for _, c := range []*candidate{first, second} {
			c.store.Break(storetest.Any, storetest.Down)
		}
		time.Sleep(ttl / 3)
		for _, c := range []*candidate{first, second} {
			c.store.Mend(storetest.Any)
		}
		time.Sleep(time.Hour)
		if len(first.ended) != 0 || len(second.terms) != 0 {
			t.Error("the leadership was lost in an outage shorter than the rest of a lease")
		}
	})
	inBubble("a long outage", func(t *testing.T, first, second *candidate) {
		second.stop() // its wait, which has begun, would not be cut off
		<-second.done
		<-first.terms
		first.store.Break(storetest.Any, storetest.Down)
		time.Sleep(2 * ttl)
		if end := <-first.ended; !errors.Is(end.why, lock.ErrExpired) || len(first.terms) != 0 {
			t.Errorf("in the outage: %v, and %d more terms", end.why, len(first.terms))
		}
		first.store.Mend(storetest.Any)
		mended := time.Now()
		if gap := (<-first.terms).Sub(mended); gap > time.Second {
			t.Errorf("there was no leader for %v after the outage", gap)
		}
	})
}

// Of two schedulers, the one that leads runs the jobs.
func TestElector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		defer store.Close()
		var runs [2]atomic.Int32
		var stops [2]func()
		for i := range stops {
			ctx, stop := context.WithCancel(t.Context())
			e := must(election.New(must(lock.New(store, "leaders")), "jobs"))
			led := make(chan struct{})
			go func() {
				defer close(led)
				_ = e.Run(ctx, func(ctx context.Context, _ *election.Term) error {
					<-ctx.Done()
					return context.Cause(ctx)
				})
			}()
			synctest.Wait()
			s, err := gocron.NewScheduler(gocron.WithDistributedElector(e))
			if err != nil {
				t.Fatal(err)
			}
			must(s.NewJob(gocron.CronJob("* * * * *", false), gocron.NewTask(func() { runs[i].Add(1) })))
			s.Start()
			stops[i] = func() {
				stop()
				<-led
				_ = s.Shutdown()
			}
		}
		time.Sleep(3*time.Minute + time.Second)
		stops[0]()
		time.Sleep(2 * time.Minute)
		stops[1]()
		if first, second := runs[0].Load(), runs[1].Load(); first != 3 || second != 2 {
			t.Errorf("%d and %d runs, want 3 and 2", first, second)
		}
	})
}
