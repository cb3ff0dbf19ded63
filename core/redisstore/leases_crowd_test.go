package redisstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// crowdSize is the number of waiters of a crowd.
const crowdSize = 100

// crowd is how a process waits with many goroutines, each of which has a place in the store.
type crowd struct {
	wait    func(ctx context.Context, i int) (release func(), err error) // of one goroutine
	all     func(ctx context.Context) (release func(), err error)        // alone
	waiting func() int
	close   func() error
}

// crowds are the kinds of crowds.
var crowds = map[string]func(s *redisstore.Store, key string) (crowd, error){
	"fair locks": func(s *redisstore.Store, key string) (crowd, error) {
		return lockCrowd(s, key, (*lock.Locker).Lock)
	},
	"readers": func(s *redisstore.Store, key string) (crowd, error) {
		return lockCrowd(s, key, (*lock.Locker).RLock)
	},
	"permits": func(s *redisstore.Store, key string) (crowd, error) {
		sem, err := semaphore.New(s, "crowd", crowdSize, semaphore.WithTTL(10*time.Second))
		if err != nil {
			return crowd{}, err
		}
		acquire := func(ctx context.Context, weight int) (func(), error) {
			p, err := sem.AcquireN(ctx, key, weight)
			if err != nil {
				return nil, err
			}
			return releasing(p.Context(), p.Release), nil
		}
		return crowd{
			wait: func(ctx context.Context, i int) (func(), error) { return acquire(ctx, i/2+1) }, // two of each weight
			all:  func(ctx context.Context) (func(), error) { return acquire(ctx, crowdSize) },
			waiting: func() int {
				state, _ := sem.Inspect(context.Background(), key)
				return state.Waiting
			},
			close: sem.Close,
		}, nil
	},
}

func lockCrowd(s *redisstore.Store, key string, wait func(*lock.Locker, context.Context, string) (*lock.Lease, error)) (crowd, error) {
	l, err := lock.New(s, "crowd", lock.WithFair(), lock.WithTTL(10*time.Second))
	if err != nil {
		return crowd{}, err
	}
	acquire := func(ctx context.Context, f func(*lock.Locker, context.Context, string) (*lock.Lease, error)) (func(), error) {
		lease, err := f(l, ctx, key)
		if err != nil {
			return nil, err
		}
		return releasing(lease.Context(), lease.Unlock), nil
	}
	return crowd{
		wait: func(ctx context.Context, _ int) (func(), error) { return acquire(ctx, wait) },
		all:  func(ctx context.Context) (func(), error) { return acquire(ctx, (*lock.Locker).Lock) },
		waiting: func() int {
			state, _ := l.Inspect(context.Background(), key)
			return state.Waiting
		},
		close: l.Close,
	}, nil
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

func newCrowd(t testing.TB, kind string, s *redisstore.Store, key string) crowd {
	t.Helper()
	c, err := crowds[kind](s, key)
	must(t, err)
	t.Cleanup(func() { _ = c.close() })
	return c
}

const (
	crowdKind    = "LEASES_TEST_CROWD"
	crowdKey     = "LEASES_TEST_KEY"
	crowdServers = "LEASES_TEST_SERVERS" // address=proxy's address,…
	crowdCluster = "LEASES_TEST_CLUSTER"
)

// TestCrowd is a process with a crowd.
func TestCrowd(t *testing.T) {
	kind := os.Getenv(crowdKind)
	if kind == "" {
		t.Skip("runs as a process of other tests")
	}
	var addrs []string
	proxies := make(map[string]string)
	for pair := range strings.SplitSeq(os.Getenv(crowdServers), ",") {
		addr, proxy, _ := strings.Cut(pair, "=")
		addrs, proxies[addr] = append(addrs, addr), proxy
	}
	dialer := func(ctx context.Context, network, addr string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, proxies[addr])
	}
	var client redis.UniversalClient
	if os.Getenv(crowdCluster) != "" {
		client = redis.NewClusterClient(&redis.ClusterOptions{ContextTimeoutEnabled: true, Addrs: addrs, Dialer: dialer})
	} else {
		client = redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: addrs[0], Dialer: dialer})
	}
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	c := newCrowd(t, kind, s, os.Getenv(crowdKey))
	ctx, leave := context.WithCancel(ctx())
	defer leave()
	left := c.join(ctx)
	fmt.Println("waiting")
	for commands := bufio.NewScanner(os.Stdin); commands.Scan(); {
		leave()
		left.Wait()
		for c.waiting() > 1 { // the next one still does
			<-time.After(5 * time.Millisecond)
		}
		fmt.Println("left")
	}
}

// crowdProcess is a process with a crowd, which may be signalled.
type crowdProcess struct {
	*exec.Cmd
	proxies []*redistest.Proxy
	stdin   io.Writer
	lines   *bufio.Scanner
}

// startCrowd starts a process with a crowd, and returns when all wait.
func startCrowd(t *testing.T, kind, key string, addrs []string, cluster string) *crowdProcess {
	t.Helper()
	p := &crowdProcess{Cmd: exec.Command(os.Args[0], "-test.run", "^TestCrowd$", "-test.timeout", "60s")}
	var pairs []string
	for _, addr := range addrs {
		proxy := redistest.NewProxy(t, addr)
		p.proxies = append(p.proxies, proxy)
		pairs = append(pairs, addr+"="+proxy.Addr())
	}
	p.Env = append(os.Environ(), crowdKind+"="+kind, crowdKey+"="+key, crowdServers+"="+strings.Join(pairs, ","), crowdCluster+"="+cluster)
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

// lease is what one goroutine waits for.
type turn struct {
	at      time.Time
	release func()
	err     error
}

// next starts a goroutine that wants all, and returns when it waits.
func (c crowd) next(t *testing.T) <-chan turn {
	t.Helper()
	before, got := c.waiting(), make(chan turn, 1)
	ctx, cancel := context.WithCancel(ctx())
	go func() {
		release, err := c.all(ctx)
		got <- turn{time.Now(), release, err}
	}()
	t.Cleanup(cancel)
	eventually(t, 5*time.Second, "another waits", func() bool { return c.waiting() > before })
	return got
}

// within fails the test unless the turn comes in time.
func within(t *testing.T, most time.Duration, since time.Time, got <-chan turn) {
	t.Helper()
	select {
	case turn := <-got:
		if turn.err != nil {
			t.Fatalf("after %v: %v", time.Since(since), turn.err)
		}
		took := turn.at.Sub(since)
		t.Logf("after %v", took)
		if took > most {
			t.Errorf("after %v, want %v", took, most)
		}
		turn.release()
	case <-time.After(most + 10*time.Second):
		t.Fatalf("not after %v", time.Since(since))
	}
}

func wantClosed(t *testing.T, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, store.ErrClosed) {
		t.Error(err)
	}
}
