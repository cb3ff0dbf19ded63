package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// lockSteps are the steps of a hold, each with a check of its effect.
var lockSteps = []struct {
	name  string
	take  func(claim, *redisstore.Store) (bool, error)
	check func(*testing.T, claim, *redisstore.Store)
}{
	{"acquire", func(c claim, s *redisstore.Store) (bool, error) {
		reply, err := c.acquire(s)
		return reply.Outcome == store.Granted && reply.Fence > 0, err
	}, wantHeld},
	{"renew", claim.renew, wantHeld},
	{"downgrade", func(c claim, s *redisstore.Store) (bool, error) { return s.DowngradeLock(ctx(), c.hold()) },
		func(t *testing.T, c claim, s *redisstore.Store) {
			wantHeld(t, c, s)
			newClaim(c.Key, "reader").shared().gets(t, s, store.Granted)
		}},
	{"release", claim.release, func(t *testing.T, c claim, s *redisstore.Store) {
		c.gets(t, s, store.Withdrawn)
		newClaim(c.Key, "next").gets(t, s, store.Granted)
	}},
	{"force", func(c claim, s *redisstore.Store) (bool, error) {
		state, err := s.InspectLock(ctx(), c.Name, c.Key)
		if err != nil || len(state.Holders) != 1 {
			return false, err
		}
		return s.ForceUnlock(ctx(), c.Name, c.Key, state.Holders[0].Fence)
	}, func(t *testing.T, c claim, s *redisstore.Store) {
		c.ends(t, s, false)
		newClaim(c.Key, "next").gets(t, s, store.Granted)
	}},
}

func wantHeld(t *testing.T, c claim, s *redisstore.Store) {
	t.Helper()
	newClaim(c.Key, "other").gets(t, s, store.Taken)
	held, err := s.VerifyLock(ctx(), c.hold())
	wantOwned(t, "verify", held, err)
}

func TestLostRepliesOfALock(t *testing.T) {
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	for name, how := range losses {
		for _, step := range lockSteps {
			t.Run(name+" "+step.name, func(t *testing.T) {
				proxy := redistest.NewProxy(t, server.Addr())
				s := newStore(t, dial(t, proxy.Addr(), 100*time.Millisecond), redisstore.WithTimeout(3*time.Second))
				c := newClaim(name+step.name, "holder")
				if step.name != "acquire" {
					c.gets(t, direct, store.Granted)
				}
				if step.name == "force" { // its first call only looks
					if _, err := s.InspectLock(ctx(), c.Name, c.Key); err != nil {
						t.Fatal(err)
					}
				}
				proxy.LoseReplies("evalsha", 1, how)
				held, err := step.take(c, s)
				wantOwned(t, step.name, held, err)
				step.check(t, c, direct)
			})
		}
	}
}

func TestALostReplyOfAForcedUnlockIsRecognized(t *testing.T) {
	_, proxy, client, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(2*time.Second))
	c := newClaim("k", "holder")
	grant := c.gets(t, s, store.Granted)
	client.AddHook(onSecond(func() { proxy.LoseReplies("evalsha", 1, redistest.Cut) }))
	done, err := s.ForceUnlock(ctx(), c.Name, c.Key, grant.Fence)
	wantOwned(t, "force", done, err)
}

// onSecond returns a hook that calls do before the second script call.
func onSecond(do func()) redis.Hook {
	n := 0
	return processHook(func(cmd redis.Cmder) {
		if cmd.Name() == "evalsha" {
			if n++; n == 2 {
				do()
			}
		}
	})
}

type processHook func(redis.Cmder)

func (h processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(cmd)
		return next(ctx, cmd)
	}
}

func TestEveryStepOfALockCanBeSentTwice(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	for _, step := range lockSteps[:4] {
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

func TestAWaiterGivesUpWithoutReplies(t *testing.T) {
	t.Parallel()
	_, proxy, _, s := behindProxy(t, 500*time.Millisecond)
	newClaim("k", "holder").gets(t, s, store.Granted)
	c := newClaim("k", "waiter").queued()
	c.gets(t, s, store.Queued)
	w := c.await(t, s)
	proxy.BlackHole()
	began := time.Now()
	select {
	case <-w.done:
	case <-time.After(10 * time.Second):
		t.Fatal("it still waits")
	}
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("gave up after %v, before its place expired", took)
	}
	wantUnavailable(t, w.err, errors.Is(w.err, redisstore.ErrNotReplicated))
}

func TestAWaiterOutlivesAShortSilence(t *testing.T) {
	t.Parallel()
	server, proxy, _, s := behindProxy(t, 500*time.Millisecond)
	direct := newStore(t, server.Client())
	holder, c := newClaim("k", "holder"), newClaim("k", "waiter").queued()
	holder.gets(t, direct, store.Granted)
	c.gets(t, s, store.Queued)
	w := c.await(t, s)
	proxy.BlackHole()
	holder.ends(t, direct, true)
	<-time.After(1200 * time.Millisecond) // longer than a heartbeat interval, shorter than the TTL of its place
	w.waits(t)
	proxy.Mend()
	w.granted(t, 10*time.Second)
}

// A dead waiter delays the next one for no longer than its reservation.
func TestADeadWaiterPassesTheLockOn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	s, dying := newStore(t, server.Client()), newStore(t, server.Client())
	holder := newClaim("k", "holder")
	holder.gets(t, s, store.Granted)
	var dead []*wait
	for i := range 2 {
		c := newClaim("k", fmt.Sprint("dead", i)).queued()
		c.gets(t, dying, store.Queued)
		dead = append(dead, c.await(t, dying))
	}
	live := newClaim("k", "live").queued()
	live.gets(t, s, store.Queued)
	w := live.await(t, s)
	must(t, dying.Close())
	for _, d := range dead {
		<-d.done
	}
	began := time.Now()
	holder.ends(t, s, true)
	w.granted(t, 8*time.Second)
	t.Logf("%v for two dead waiters", time.Since(began))
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
	try, record, ghost := 0, "", claim{}
	eventually(t, 5*time.Second, "a waiter whose inbox is known", func() bool {
		try++
		ghost = newClaim("k", fmt.Sprint("ghost", try)).queued()
		ghost.gets(t, dead, store.Queued)
		record = keysOf(t, client, "*}:jobs")[0]
		if strings.Contains(client.HGet(ctx(), record, "q"+ghost.ID).Val(), " P") {
			return true
		}
		ghost.ends(t, dead, false) // its store did not know of its subscription yet
		return false
	})
	must(t, dead.Close())
	next := newClaim("k", "next").queued()
	next.gets(t, alive, store.Queued)
	w := next.await(t, alive)
	eventually(t, 5*time.Second, "the dead process has no inbox", func() bool {
		return len(client.PubSubChannels(ctx(), "*").Val()) == 1
	})
	holder.ends(t, alive, true)
	if client.HExists(ctx(), record, "h"+ghost.ID).Val() {
		t.Error("it is reserved for the dead process")
	}
	w.granted(t, 900*time.Millisecond)
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
		reply, err := s.AcquireLock(ctx, c.request())
		if err == nil && reply.Outcome == store.Queued {
			_, err = s.AwaitLock(ctx, c.request())
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v", after, err)
		}
		cancel()
		c.ends(t, s, false)
	}
	proxy.Mend()
	state, err := s.InspectLock(ctx(), "jobs", "k")
	if err != nil || len(state.Holders) != 1 || state.Waiting != 0 {
		t.Errorf("inspect: %+v, %v", state, err)
	}
	holder.ends(t, s, true)
	for _, key := range keysOf(t, direct, "*") {
		if !strings.Contains(key, "}x:") && !strings.HasSuffix(key, "}f") {
			t.Errorf("%s is left", key)
		}
	}
	eventually(t, 5*time.Second, "goroutines end", func() bool { return goroutines() <= before })
}

func TestTheEndOfAWaitHasTheContextsCause(t *testing.T) {
	s := newStore(t, redistest.Start(t).Client())
	newClaim("k", "holder").gets(t, s, store.Granted)
	c := newClaim("k", "waiter").queued()
	c.gets(t, s, store.Queued)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(ctx())
	cancel(why)
	if _, err := s.AwaitLock(ctx, c.request()); !errors.Is(err, why) || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error and cause", err)
	}
}

// A waiter that comes to the front sends heartbeats more often, so that its death is detected.
// Until the first of these, its place expires when the next of its rare heartbeats would be late.
func TestAPlaceAtTheFrontExpiresSooner(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	holder := newClaim("k", "holder")
	holder.gets(t, s, store.Granted)
	var queue []claim
	for i := range 5 {
		c := newClaim("k", fmt.Sprint("n", i)).queued()
		c.gets(t, s, store.Queued)
		queue = append(queue, c)
		if i > 0 { // the first claims the lock, which would end the test
			c.await(t, s)
		}
	}
	living := func(c claim) time.Duration {
		return time.Until(time.UnixMicro(int64(direct.ZScore(ctx(), keysOf(t, direct, "*}w")[0], c.ID).Val())))
	}
	eventually(t, 5*time.Second, "two have sent heartbeats from behind the front", func() bool {
		return living(queue[3]) > 20*time.Second && living(queue[4]) > 20*time.Second
	})
	holder.ends(t, s, true)
	if left := living(queue[3]); left > 13*time.Second {
		t.Errorf("at the front, its place expires after %v", left)
	}
	if left := living(queue[4]); left < 13*time.Second {
		t.Errorf("behind the front, its place expires after %v", left)
	}
}

// A waiter without heartbeats is passed over, though no message has shown that its process ended.
func TestAWaiterWithoutHeartbeatsIsPassedOver(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	holder, dead, next := newClaim("k", "holder"), newClaim("k", "dead").queued(), newClaim("k", "next").queued()
	dead.Fair, next.Fair = true, true // so that a message without a receiver proves nothing
	holder.gets(t, s, store.Granted)
	dead.gets(t, s, store.Queued)
	next.gets(t, s, store.Queued)
	must(t, direct.ZAdd(ctx(), keysOf(t, direct, "*}w")[0], redis.Z{Score: 1, Member: dead.ID}).Err())
	holder.ends(t, s, true)
	next.gets(t, s, store.Granted)
}
