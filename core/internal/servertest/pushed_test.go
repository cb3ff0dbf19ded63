package servertest

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

const (
	pushedRedis = "LOCK_TEST_PUSHED_REDIS"
	pushedDelay = "LOCK_TEST_PUSHED_DELAY"
	pushedTTL   = time.Second // shorter than a push, and than the pauses
)

// TestPushedProcess is a process that waits for a lock, and then holds it.
func TestPushedProcess(t *testing.T) {
	addr := os.Getenv(pushedRedis)
	if addr == "" {
		t.Skip("runs as a process of other tests")
	}
	st := must(redisstore.New(redis.NewClient(patiently(addr)), redisstore.WithTimeout(patience)))
	delay := must(time.ParseDuration(os.Getenv(pushedDelay)))
	l := must(lock.New(st, "test", lock.WithTTL(pushedTTL), lock.WithLockDelay(delay)))
	lease := insistOn(t, l, "k")
	for stdin := bufio.NewScanner(os.Stdin); ; stdin.Scan() {
		fmt.Println("until", lease.ValidUntil().UnixNano(), lease.Fence().Number)
	}
}

type pushedProcess struct {
	t *testing.T
	*exec.Cmd
	until func() (end time.Time, fence int64) // reads a line
}

// startPushed starts a process that waits for the lock, which another holds.
func startPushed(t *testing.T, server *redistest.Server, delay time.Duration, waiting func() int) *pushedProcess {
	t.Helper()
	p := &pushedProcess{t: t, Cmd: exec.Command(os.Args[0], "-test.run", "^TestPushedProcess$", "-test.timeout", "5m")}
	p.Env = append(os.Environ(), pushedRedis+"="+server.Addr(), pushedDelay+"="+delay.String())
	stdin, stdout := must(p.StdinPipe()), must(p.StdoutPipe())
	ok(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	lines := bufio.NewScanner(stdout)
	first := true
	p.until = func() (end time.Time, fence int64) {
		if !first {
			_, _ = fmt.Fprintln(stdin)
		}
		first = false
		for lines.Scan() {
			var ns int64
			if n, _ := fmt.Sscanf(lines.Text(), "until %d %d", &ns, &fence); n == 2 {
				return time.Unix(0, ns), fence
			}
		}
		t.Fatal("the process has ended")
		return
	}
	before := waiting()
	eventually(t, "the process waits", func() bool { return waiting() > before })
	return p
}

func waitersOf(t *testing.T, l *lock.Locker) func() int {
	return func() int { return must(l.Inspect(t.Context(), "k")).Waiting }
}

// A process is stopped right after a push has given it the lock: its lease ends before the next.
func TestStoppedAfterAPush(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{1500 * time.Millisecond, 2500 * time.Millisecond} {
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			for range 5 {
				if !stopAfterAPush(t, pause) {
					return
				}
			}
			t.Fatal("the machine is too slow to take up a push")
		})
	}
}

// stopAfterAPush returns true if the process was too late to take up the push, and the next had the
// lock before it.
func stopAfterAPush(t *testing.T, pause time.Duration) (late bool) {
	t.Helper()
	server := redistest.Start(t)
	holder, next := newPeer(t, server), newPeer(t, server)
	lease := mustLock(t, holder.Locker, "k")
	p := startPushed(t, server, 0, waitersOf(t, holder.Locker))
	type grant struct {
		at    time.Time
		fence int64
	}
	got := make(chan grant, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		if lease, err := next.Lock(ctx, "k"); err == nil {
			got <- grant{time.Now(), lease.Fence().Number}
			_ = lease.Unlock(context.Background())
		}
	}()
	eventually(t, "the next waits", func() bool { return waitersOf(t, holder.Locker)() == 2 })
	mustUnlock(t, lease)
	p.until() // when it begins
	ok(t, p.Process.Signal(syscall.SIGSTOP))
	<-time.After(pause)
	ok(t, p.Process.Signal(syscall.SIGCONT))
	until, fence := p.until()
	select {
	case next := <-got:
		if next.fence < fence {
			return true
		}
		t.Logf("the next has it %v after the end of the first", next.at.Sub(until))
		if next.at.Before(until) {
			t.Errorf("the next has it %v before the end of the first", until.Sub(next.at))
		}
	case <-time.After(time.Until(until)):
		t.Log("the first keeps it")
	}
	return false
}

// A process is killed in a lease that it has by a push: the lock-delay begins after its lease.
func TestLockDelayAfterAPush(t *testing.T) {
	t.Parallel()
	const delay = 1500 * time.Millisecond
	server := redistest.Start(t)
	holder, next := newPeer(t, server, lock.WithLockDelay(delay)), newPeer(t, server, lock.WithLockDelay(delay))
	lease := mustLock(t, holder.Locker, "k")
	p := startPushed(t, server, delay, waitersOf(t, holder.Locker))
	mustUnlock(t, lease)
	until, _ := p.until()
	<-time.After(10 * time.Millisecond)
	ok(t, p.Process.Kill())
	after := mustLock(t, next.Locker, "k")
	at := time.Now()
	t.Logf("the next has it %v after the end of the first", at.Sub(until))
	if at.Before(until.Add(delay)) {
		t.Errorf("the next has it %v after the end of the first, want a delay of %v", at.Sub(until), delay)
	}
	if at.After(until.Add(delay + patience)) { // the machine may be busy
		t.Errorf("the next has it only %v after the end of the first", at.Sub(until))
	}
	mustUnlock(t, after)
}

// A lease without renewal lasts for its TTL although it was given by a push, and no longer.
func TestWithoutRenewalAfterAPush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	const long = 3 * time.Second
	holder, waiter := newPeer(t, server), newPeer(t, server, lock.WithTTL(long), lock.WithoutRenewal())
	lease := mustLock(t, holder.Locker, "k")
	got := make(chan *lock.Lease)
	go func() {
		lease, _ := waiter.Lock(context.Background(), "k")
		got <- lease
	}()
	eventually(t, "it waits", func() bool { return waitersOf(t, holder.Locker)() == 1 })
	mustUnlock(t, lease)
	began := time.Now()
	pushed := <-got
	if pushed == nil {
		t.Fatal("it was granted nothing")
	}
	<-pushed.Context().Done()
	took := time.Since(began)
	t.Logf("it lasted for %v", took)
	if took < long-long/10 || took > long+patience { // the machine may be busy
		t.Errorf("it lasted for %v, want %v", took, long)
	}
	after := mustLock(t, holder.Locker, "k")
	mustUnlock(t, after)
}

// A lease that was given by a push is handed on within the process, and not without end: another
// process gets its turns. The test is not parallel, since it leaves no CPU time to others.
func TestHandOnAfterAPush(t *testing.T) {
	server := redistest.Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		turns, runs [2]atomic.Int64
		last        atomic.Int64
	)
	last.Store(-1)
	done := make(chan struct{})
	for i := range 2 {
		p := newPeer(t, server)
		for range 8 {
			go func() {
				defer func() { done <- struct{}{} }()
				for ctx.Err() == nil {
					lease, err := p.Lock(ctx, "k")
					if err != nil {
						return
					}
					if turns[i].Add(1); last.Swap(int64(i)) != int64(i) {
						runs[i].Add(1)
					}
					_ = lease.Unlock(context.Background())
				}
			}()
		}
	}
	<-time.After(1500 * time.Millisecond)
	eventually(t, "both have turns", func() bool { return runs[0].Load() > 1 && runs[1].Load() > 1 })
	cancel()
	for range 16 {
		<-done
	}
	for i := range 2 {
		n, r := turns[i].Load(), runs[i].Load()
		t.Logf("%d turns in %d runs", n, r)
		if n < 2*r || n > 48*r { // of 16, and more if the other process is not scheduled
			t.Errorf("%d turns in %d runs", n, r)
		}
	}
}
