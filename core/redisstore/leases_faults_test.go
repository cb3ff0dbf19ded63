package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// leaseSteps are the steps of a hold, each with a check of its effect.
var leaseSteps = []struct {
	name  string
	take  func(claim, *redisstore.Store) (bool, error)
	check func(*testing.T, claim, *redisstore.Store)
}{
	{"acquire", func(c claim, s *redisstore.Store) (bool, error) {
		before := c.fence.Load()
		reply, err := c.acquire(s)
		return reply.Outcome == store.Granted && (before == 0 || reply.Fence == before), err
	}, wantHeld},
	{"renew", claim.renew, wantHeld},
	{"downgrade", func(c claim, s *redisstore.Store) (bool, error) { return s.DowngradeLease(ctx(), c.ref(), 1) },
		func(t *testing.T, c claim, s *redisstore.Store) {
			wantHeld(t, c, s)
			newClaim(c.Key, "reader").shared().gets(t, s, store.Granted)
		}},
	{"release", claim.release, func(t *testing.T, c claim, s *redisstore.Store) {
		c.held(t, s, false)
		newClaim(c.Key, "next").gets(t, s, store.Granted)
	}},
	{"revoke", func(c claim, s *redisstore.Store) (bool, error) {
		return s.RevokeLease(ctx(), c.Name, c.Key, c.fence.Load())
	}, func(t *testing.T, c claim, s *redisstore.Store) {
		c.ends(t, s, false)
		newClaim(c.Key, "next").gets(t, s, store.Granted)
	}},
}

func wantHeld(t *testing.T, c claim, s *redisstore.Store) {
	t.Helper()
	newClaim(c.Key, "other").gets(t, s, store.Taken)
	c.held(t, s, true)
}

func TestLostRepliesOfALease(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	for name, how := range losses {
		for _, step := range leaseSteps {
			t.Run(name+" "+step.name, func(t *testing.T) {
				proxy := redistest.NewProxy(t, server.Addr())
				s := newStore(t, dial(t, proxy.Addr(), 100*time.Millisecond), redisstore.WithTimeout(3*time.Second))
				c := newClaim(name+step.name, "holder")
				if step.name != "acquire" {
					c.gets(t, direct, store.Granted)
				}
				proxy.LoseReplies("evalsha", 1, how)
				held, err := step.take(c, s)
				wantOwned(t, step.name, held, err)
				step.check(t, c, direct)
				if proxy.Seen("evalsha") < 2 {
					t.Error("it was not sent again: the test does not test what it says")
				}
			})
		}
	}
}

func TestEveryStepOfALeaseCanBeSentTwice(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, redistest.Start(t).Client())
	for _, step := range leaseSteps[:4] {
		t.Run(step.name, func(t *testing.T) {
			c := newClaim("twice-"+step.name, "holder")
			c.gets(t, s, store.Granted)
			for range 2 {
				held, err := step.take(c, s)
				wantOwned(t, step.name, held, err)
			}
			step.check(t, c, s)
		})
	}
}

// An acquire that was sent again, or whose caller left, may still be on its way when its ID is
// released: it is refused then. Others leave nothing.
func TestALateAcquireIsRefused(t *testing.T) {
	testpace.Parallel(t)
	server, proxy, _, s := behindProxy(t, 500*time.Millisecond, redisstore.WithTimeout(3*time.Second))
	direct := newStore(t, server.Client())
	tombstones := func() int { return len(server.Client().Keys(ctx(), "*}x").Val()) }
	plain := newClaim("plain", "plain")
	plain.gets(t, s, store.Granted)
	plain.ends(t, s, true)
	plain.queued().gets(t, s, store.Granted)
	plain.ends(t, s, true)
	if n := tombstones(); n != 0 {
		t.Errorf("%d tombstones without a late acquire", n)
	}
	again := newClaim("again", "again")
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	again.gets(t, s, store.Granted)
	again.ends(t, s, true)
	again.gets(t, direct, store.Withdrawn)
	again.queued().gets(t, direct, store.Withdrawn)
	tombstoned(t, s, "left").gets(t, direct, store.Withdrawn)
	newClaim("left", "next").gets(t, direct, store.Granted)
	if n := tombstones(); n != 2 {
		t.Errorf("%d tombstones", n)
	}
}

func TestAWaiterGivesUpWithoutReplies(t *testing.T) {
	t.Parallel()
	_, proxy, _, s := behindProxy(t, 500*time.Millisecond)
	newClaim("k", "holder").gets(t, s, store.Granted)
	w := newClaim("k", "waiter").waitsIn(t, s)
	proxy.BlackHole()
	began := time.Now()
	select {
	case <-w.done:
	case <-time.After(15 * time.Second):
		t.Fatal("it still waits")
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("gave up after %v, before its place expired", took)
	}
	wantUnavailable(t, w.err, errors.Is(w.err, store.ErrUnconfirmed))
}

func TestAWaiterOutlivesAShortSilence(t *testing.T) {
	t.Parallel()
	server, proxy, _, s := behindProxy(t, 500*time.Millisecond)
	direct := newStore(t, server.Client())
	holder := newClaim("k", "holder")
	holder.gets(t, direct, store.Granted)
	w := newClaim("k", "waiter").waitsIn(t, s)
	proxy.BlackHole()
	holder.ends(t, direct, true)
	<-time.After(1200 * time.Millisecond) // longer than a heartbeat interval, shorter than the life of its place
	w.waits(t)
	proxy.Mend()
	w.granted(t, 10*time.Second)
}

// A dead process delays others for no longer than one grant, however many places it has.
func TestADeadProcessPassesTheLockOn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, dying := newStore(t, server.Client()), newStore(t, server.Client())
	holder := newClaim("k", "holder")
	holder.gets(t, s, store.Granted)
	var dead []*wait
	for i := range 20 {
		dead = append(dead, newClaim("k", fmt.Sprint("dead", i)).waitsIn(t, dying))
	}
	w := newClaim("k", "live").waitsIn(t, s)
	must(t, dying.Close())
	for _, d := range dead {
		<-d.done
	}
	began := time.Now()
	holder.ends(t, s, true)
	w.granted(t, 5*time.Second)
	t.Logf("%v for 20 dead waiters", time.Since(began))
}

// A lock is not granted to a waiter whose process has ended: the next waiter is granted it at once.
func TestADeadProcessIsGrantedNoLock(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	alive, dead := newStore(t, client), newStore(t, client)
	holder := newClaim("k", "holder")
	holder.gets(t, alive, store.Granted)
	newClaim("k", "knock").gets(t, dead, store.Taken)
	subscribed(t, client, 2)
	try := 0
	eventually(t, 5*time.Second, "a waiter whose inbox is known", func() bool {
		try++
		ghost := newClaim("k", fmt.Sprint("ghost", try)).queued()
		ghost.gets(t, dead, store.Queued)
		for _, process := range client.HGetAll(ctx(), keysOf(t, client, "*}p")[0]).Val() {
			if strings.Contains(process, ":P") {
				return true
			}
		}
		ghost.ends(t, dead, false) // its store did not know of its subscription yet
		return false
	})
	must(t, dead.Close())
	next := newClaim("k", "next").waitsIn(t, alive)
	eventually(t, 5*time.Second, "the dead process has no inbox", func() bool {
		return len(client.PubSubChannels(ctx(), "*").Val()) == 1
	})
	holder.ends(t, alive, true)
	state, err := alive.InspectLease(ctx(), holder.Name, "k")
	if err != nil || len(state.Holders) != 1 || state.Holders[0].Label != "next" || state.Waiting != 0 {
		t.Errorf("%+v, %v: it is granted to the dead process", state, err)
	}
	next.granted(t, 5*time.Second)
}

// withoutSubscribe returns a server, and a client of a user who may not subscribe.
func withoutSubscribe(t *testing.T) (*redistest.Server, *redis.Client) {
	t.Helper()
	server := redistest.Start(t, "--user", "app", "on", ">secret", "~*", "&*", "+@all", "-subscribe")
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	return server, client
}

// A process without a subscription and without heartbeats is passed over.
func TestAProcessWithoutHeartbeatsIsPassedOver(t *testing.T) {
	t.Parallel()
	server, client := withoutSubscribe(t)
	s, dead := newStore(t, server.Client()), newStore(t, client)
	holder := newClaim("k", "holder")
	holder.gets(t, s, store.Granted)
	newClaim("k", "dead").queued().gets(t, dead, store.Queued) // no call awaits it
	next := newClaim("k", "next").waitsIn(t, s)
	<-time.After(3200 * time.Millisecond) // three intervals
	holder.ends(t, s, true)
	state, err := s.InspectLease(ctx(), holder.Name, "k")
	if err != nil || len(state.Holders) != 1 || state.Holders[0].Label != "next" || state.Waiting != 0 {
		t.Errorf("%+v, %v: it was not passed over", state, err)
	}
	next.granted(t, 5*time.Second)
}

// A process that is passed over while it is slow gets its places back, with their numbers.
func TestASlowProcessGetsItsPlacesBack(t *testing.T) {
	t.Parallel()
	server, client := withoutSubscribe(t)
	gate := new(gate)
	client.AddHook(gate)
	s, slow := newStore(t, server.Client()), newStore(t, client, redisstore.WithTimeout(30*time.Second))
	holder := newClaim("k", "holder")
	holder.gets(t, s, store.Granted)
	a, b := newClaim("k", "a").waitsIn(t, slow), newClaim("k", "b").waitsIn(t, slow)
	next := newClaim("k", "next").waitsIn(t, s)
	waiting := func() int {
		state, err := s.InspectLease(ctx(), holder.Name, "k")
		must(t, err)
		return state.Waiting
	}
	gate.Lock()
	holder.ends(t, s, true)
	next.granted(t, 10*time.Second) // after the grant to a has run out
	if n := waiting(); n != 0 {
		t.Errorf("%d wait", n)
	}
	last := newClaim("k", "last").waitsIn(t, s)
	gate.Unlock()
	eventually(t, 10*time.Second, "it has its places back", func() bool { return waiting() == 3 })
	next.ends(t, s, true)
	for _, w := range []*wait{a, b} {
		w.granted(t, 10*time.Second)
		last.waits(t)
		w.ends(t, slow, true)
	}
	last.granted(t, 10*time.Second)
}

// gate is a hook that lets script calls wait while it is locked.
type gate struct{ sync.RWMutex }

func (g *gate) pass() {
	g.RLock()
	defer g.RUnlock()
}

func (*gate) DialHook(next redis.DialHook) redis.DialHook { return next }

func (g *gate) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		g.pass()
		return next(ctx, cmds)
	}
}

func (g *gate) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			g.pass()
		}
		return next(ctx, cmd)
	}
}

func TestTheEndOfAContextLeavesNothing(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	direct := server.Client()
	s := newStore(t, dial(t, proxy.Addr(), 500*time.Millisecond), redisstore.WithTimeout(2*time.Second))
	holder := newClaim("k", "holder")
	holder.gets(t, s, store.Granted)
	subscribed(t, direct, 1)
	before := goroutines()
	proxy.Delay(10 * time.Millisecond)
	for i := range 15 { // the context ends before, in and after the acquire, and in the wait
		c := newClaim("k", fmt.Sprint("c", i)).queued()
		after := time.Duration(i) * 4 * time.Millisecond
		ctx, cancel := context.WithTimeout(ctx(), after)
		reply, err := s.AcquireLease(ctx, c.LeaseRequest)
		if err == nil && reply.Outcome == store.Queued {
			c.Place = reply.Place
			_, err = s.AwaitLease(ctx, c.LeaseRequest)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", after, err)
		}
		cancel()
		c.ends(t, s, false)
	}
	proxy.Mend()
	state, err := s.InspectLease(ctx(), holder.Name, "k")
	if err != nil || len(state.Holders) != 1 || state.Waiting != 0 {
		t.Errorf("inspect: %+v, %v", state, err)
	}
	holder.ends(t, s, true)
	onlyRecords(t, direct)
	eventually(t, 5*time.Second, "goroutines end", func() bool { return goroutines() <= before })
}

func TestTheEndOfAWaitHasTheContextsCause(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, redistest.Start(t).Client())
	newClaim("k", "holder").gets(t, s, store.Granted)
	c := newClaim("k", "waiter").queued()
	c.gets(t, s, store.Queued)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(ctx())
	cancel(why)
	if _, err := s.AwaitLease(ctx, c.LeaseRequest); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error and cause", err)
	}
}
