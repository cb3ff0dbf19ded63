package pgstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// crowdSize is the number of waiters of a crowd.
	crowdSize = 100
	// passedOver is how long the waiters of a dead process may keep others waiting.
	passedOver = 3 * time.Second
)

// crowd is how a process waits with many goroutines, each of which has a place in the store.
type crowd struct {
	wait    func(ctx context.Context, i int) (release func(), err error) // of one goroutine
	all     func(ctx context.Context) (release func(), err error)        // alone
	waiting func() int
	close   func() error
}

var crowds = map[string]func(t testing.TB, s *Store) crowd{
	"fair locks": func(t testing.TB, s *Store) crowd { return lockCrowd(t, s, (*lock.Locker).Lock) },
	"readers":    func(t testing.TB, s *Store) crowd { return lockCrowd(t, s, (*lock.Locker).RLock) },
	"permits": func(t testing.TB, s *Store) crowd {
		sem, err := semaphore.New(s, "crowd", crowdSize, semaphore.WithTTL(10*time.Second))
		must(t, err)
		acquire := func(ctx context.Context, weight int) (func(), error) {
			p, err := sem.AcquireN(ctx, "k", weight)
			if err != nil {
				return nil, err
			}
			return releasing(p.Context(), p.Release), nil
		}
		return crowd{
			wait: func(ctx context.Context, i int) (func(), error) { return acquire(ctx, i/2+1) }, // two of each weight
			all:  func(ctx context.Context) (func(), error) { return acquire(ctx, crowdSize) },
			waiting: func() int {
				state, _ := sem.Inspect(context.Background(), "k")
				return state.Waiting
			},
			close: sem.Close,
		}
	},
}

func lockCrowd(t testing.TB, s *Store, wait func(*lock.Locker, context.Context, string) (*lock.Lease, error)) crowd {
	l, err := lock.New(s, "crowd", lock.WithFair(), lock.WithTTL(10*time.Second))
	must(t, err)
	acquire := func(ctx context.Context, f func(*lock.Locker, context.Context, string) (*lock.Lease, error)) (func(), error) {
		lease, err := f(l, ctx, "k")
		if err != nil {
			return nil, err
		}
		return releasing(lease.Context(), lease.Unlock), nil
	}
	return crowd{
		wait: func(ctx context.Context, _ int) (func(), error) { return acquire(ctx, wait) },
		all:  func(ctx context.Context) (func(), error) { return acquire(ctx, (*lock.Locker).Lock) },
		waiting: func() int {
			state, _ := l.Inspect(context.Background(), "k")
			return state.Waiting
		},
		close: l.Close,
	}
}

// releasing returns a function that releases a lease, and does so itself when the lease's context
// ends, as a holder does that has stopped.
func releasing(held context.Context, release func(context.Context) error) func() {
	stop := func() { _ = release(context.Background()) }
	context.AfterFunc(held, stop)
	return stop
}

// join starts the goroutines of a crowd, and returns when all wait.
func (c crowd) join(ctx context.Context) (left *sync.WaitGroup) {
	left = new(sync.WaitGroup)
	before := c.waiting()
	for i := range crowdSize {
		left.Go(func() {
			if _, err := c.wait(ctx, i); err == nil {
				<-ctx.Done() // the lease is not released
			}
		})
	}
	for c.waiting() < before+crowdSize {
		<-time.After(5 * time.Millisecond)
	}
	return left
}

func newCrowd(t testing.TB, kind string, s *Store) crowd {
	t.Helper()
	c := crowds[kind](t, s)
	t.Cleanup(func() { _ = c.close() })
	return c
}

// next starts a goroutine that wants all, and returns when it waits.
func (c crowd) next(t *testing.T) <-chan time.Time {
	t.Helper()
	before, got := c.waiting(), make(chan time.Time, 1)
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	go func() {
		if release, err := c.all(ctx); err == nil {
			got <- time.Now()
			release()
		}
	}()
	for c.waiting() <= before {
		<-time.After(5 * time.Millisecond)
	}
	return got
}

// turn returns after how long a turn comes.
func turn(t *testing.T, since time.Time, got <-chan time.Time) time.Duration {
	t.Helper()
	select {
	case at := <-got:
		took := at.Sub(since)
		t.Logf("after %v", took)
		return took
	case <-time.After(passedOver + patience):
		t.Fatalf("not after %v", time.Since(since))
		return 0
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	crowdKind = "LEASES_TEST_CROWD"
	crowdDSN  = "LEASES_TEST_CROWD_DSN"
)

// cutting is a connection that a cut silences: it says nothing, and hears nothing.
type cutting struct {
	net.Conn
	cut <-chan struct{}
}

func (c cutting) isCut() bool {
	select {
	case <-c.cut:
		return true
	default:
		return false
	}
}

func (c cutting) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.isCut() {
			return n, err
		}
	}
}

func (c cutting) Write(b []byte) (int, error) {
	if c.isCut() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// TestCrowd is a process with a crowd. Whatever it reads cuts it off.
func TestCrowd(t *testing.T) {
	kind := os.Getenv(crowdKind)
	if kind == "" {
		t.Skip("runs as a process of other tests")
	}
	config, err := pgxpool.ParseConfig(os.Getenv(crowdDSN))
	must(t, err)
	cut := make(chan struct{})
	config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return cutting{conn, cut}, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	s, err := NewFromPool(pool, WithTimeout(lenient))
	must(t, err)
	newCrowd(t, kind, s).join(t.Context())
	fmt.Println("waiting")
	in := bufio.NewReader(os.Stdin)
	_, _ = in.ReadString('\n')
	close(cut)
	fmt.Println("cut")
	_, _ = io.Copy(io.Discard, in)
	os.Exit(0)
}

// crowdProcess is a process with a crowd, which may be signalled.
type crowdProcess struct {
	*exec.Cmd
	stdin io.Writer
	lines *bufio.Scanner
}

// startCrowd starts a process with a crowd, and returns when all wait.
func startCrowd(t *testing.T, kind, dsn string) *crowdProcess {
	t.Helper()
	p := &crowdProcess{Cmd: exec.Command(os.Args[0], "-test.run", "^TestCrowd$", "-test.timeout", "5m")} //nolint:gosec // the test's own binary
	p.Env = append(os.Environ(), crowdKind+"="+kind, crowdDSN+"="+dsn)
	stdin, err := p.StdinPipe()
	must(t, err)
	stdout, err := p.StdoutPipe()
	must(t, err)
	p.Stderr = os.Stderr
	must(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	p.stdin, p.lines = stdin, bufio.NewScanner(stdout)
	p.prints(t, "waiting")
	return p
}

func (p *crowdProcess) prints(t *testing.T, want string) {
	t.Helper()
	for p.lines.Scan() {
		if p.lines.Text() == want {
			return
		}
	}
	t.Fatalf("the process did not print %q", want)
}

// A hundred waiters of a process that is dead, or seems so, delay others together as long as one.
func TestDeadWaiters(t *testing.T) {
	t.Parallel()
	for kind := range crowds {
		for death, die := range map[string]func(t *testing.T, p *crowdProcess){
			"killed": func(t *testing.T, p *crowdProcess) {
				must(t, p.Process.Kill())
				_ = p.Wait()
			},
			"stopped": func(t *testing.T, p *crowdProcess) { must(t, p.Process.Signal(syscall.SIGSTOP)) },
			"cut off": func(t *testing.T, p *crowdProcess) {
				_, err := fmt.Fprintln(p.stdin)
				must(t, err)
				p.prints(t, "cut")
			},
		} {
			t.Run(kind+"/"+death, func(t *testing.T) {
				t.Parallel()
				inTime(t, "to pass over the dead", passedOver, func() time.Duration {
					dsn := migrated(t)
					holder, live := newCrowd(t, kind, openTestStore(t, dsn)), newCrowd(t, kind, openTestStore(t, dsn))
					release, err := holder.all(t.Context())
					must(t, err)
					dead := startCrowd(t, kind, dsn)
					got := live.next(t)
					die(t, dead)
					began := time.Now()
					release()
					return turn(t, began, got)
				})
			})
		}
	}
}

// The waiters and the leases of a process that shuts down delay no other.
func TestWaitersOfAProcessThatShutsDown(t *testing.T) {
	t.Parallel()
	for kind := range crowds {
		for _, end := range []string{"close", "shutdown"} {
			t.Run(kind+"/"+end, func(t *testing.T) {
				t.Parallel()
				inTime(t, "the next turn", time.Second, func() time.Duration {
					dsn := migrated(t)
					s := openTestStore(t, dsn)
					going, live := newCrowd(t, kind, s), newCrowd(t, kind, openTestStore(t, dsn))
					_, err := going.all(t.Context())
					must(t, err)
					left := going.join(t.Context())
					got := live.next(t)
					if end == "close" {
						err = going.close()
					} else {
						err = s.Shutdown(t.Context())
					}
					if err != nil && !errors.Is(err, store.ErrClosed) {
						t.Error(err)
					}
					took := turn(t, time.Now(), got)
					left.Wait()
					return took
				})
			})
		}
	}
}
