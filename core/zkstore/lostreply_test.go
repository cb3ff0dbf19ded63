package zkstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The reply to any step may be lost: there is never a second grant, the newer entry of another
// process is not deleted, and no place is left behind.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]faultproxy.Loss{"cut": faultproxy.Cut, "silent": faultproxy.Silence} {
		for _, command := range []string{"create", "createContainer", "getChildren", "exists", "getData", "setData", "sync", "delete", "multi"} {
			t.Run(command+" "+name, func(t *testing.T) {
				p := newPair(t, WithTimeout(testpace.Scale(time.Second)))
				p.losses(command, how)
			})
		}
	}
}

func (p *pair) losses(command string, how faultproxy.Loss) {
	t := p.t
	l, other := locker(t, p.behind, lock.WithTTL(5*time.Second)), locker(t, p.other, lock.WithTTL(5*time.Second))
	warm, err := l.Lock(t.Context(), "warm") // connects, and reads what is read once
	must(t, err)
	must(t, warm.Unlock(t.Context()))
	lose := func() { p.proxy.LoseReplies(command, 1, how) }
	may := func(what string, err error) bool {
		t.Helper()
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
		return err == nil
	}
	only := func(key string, lease *lock.Lease) {
		t.Helper()
		state := p.state(key)
		if len(state.Holders) != 1 || state.Holders[0].Fence > lease.Fence().Number || state.Holders[0].LastFence < lease.Fence().Number {
			t.Errorf("fence %d holds, and the state is %+v", lease.Fence().Number, state)
		}
	}

	// Locks that are free, of which one is downgraded, and one has a lock-delay.
	for i, acquire := range []func(context.Context, string) (*lock.Lease, error){l.Lock, l.TryLock, l.RLock} {
		key := fmt.Sprint("free", i)
		lose()
		lease, err := acquire(t.Context(), key)
		if may("lock", err) {
			only(key, lease)
			lose()
			may("verify", lease.Verify(t.Context()))
			if i == 1 {
				lose()
				if may("downgrade", lease.Downgrade(t.Context())) {
					only(key, lease)
				}
			}
			lose()
			may("unlock", lease.Unlock(t.Context()))
		}
		p.proxy.Mend()
		next, err := other.Lock(t.Context(), key)
		must(t, err)
		testpace.Eventually(t, patience, "a newer entry alone is there", func() bool {
			state := p.state(key)
			return len(state.Holders) == 1 && state.Holders[0].Fence == next.Fence().Number && state.Waiting == 0
		})
		must(t, next.Verify(t.Context()))
		must(t, next.Unlock(t.Context()))
		p.empty(key, patience)
	}

	// One that is held: the request waits, or is given up.
	for i, give := range []bool{false, true} {
		key := fmt.Sprint("held", i)
		held, err := other.Lock(t.Context(), key)
		must(t, err)
		lose()
		_, err = l.TryLock(t.Context(), key)
		if err == nil {
			t.Fatal("granted twice")
		}
		ctx, cancel := context.WithCancel(t.Context())
		granted := make(chan *lock.Lease, 1)
		go func() {
			lease, err := l.Lock(ctx, key)
			if err != nil && !errors.Is(err, store.ErrUnavailable) && ctx.Err() == nil {
				t.Error(err)
			}
			granted <- lease
		}()
		<-time.After(50 * time.Millisecond) // somewhere in its steps
		if give {
			cancel()
			if lease := <-granted; lease != nil {
				t.Error("granted twice")
			}
		}
		lose()
		must(t, held.Verify(t.Context()))
		must(t, held.Unlock(t.Context()))
		if !give {
			if lease := <-granted; lease != nil {
				only(key, lease)
				may("unlock", lease.Unlock(t.Context()))
			}
		}
		cancel()
		p.proxy.Mend()
		p.empty(key, patience)
	}
}

// Under losses all the time, goroutines of two processes exclude each other, and each gets its turn.
func TestLossesAllTheTime(t *testing.T) {
	p := newPair(t, WithTimeout(testpace.Scale(time.Second)))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	c := newContest(t, 1)
	c.run(ctx, 3, p.behind, p.other)
	commands := []string{"create", "getChildren", "sync", "delete", "exists", "getData"}
	for i := 0; ctx.Err() == nil; i++ {
		p.proxy.LoseReplies(commands[i%len(commands)], 1, faultproxy.Loss(i/len(commands)%2))
		<-time.After(150 * time.Millisecond)
	}
	p.proxy.Mend()
	c.end(10)
	p.empty("0", patience)
}
