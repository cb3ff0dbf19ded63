package lock_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// A history is what the processes of a test say of their leases, and what their killer adds.
//
// The clock is the machine's, which all processes read; tests last for seconds.

// event is one thing that happened to a lease.
type event struct {
	at    time.Time
	what  eventKind
	lease string // names the process and the lease
	fence int64
}

type eventKind string

const (
	granted eventKind = "granted" // at the moment at which the caller had it
	ended   eventKind = "ended"   // just before its release was asked for, or when its context had ended
	killed  eventKind = "killed"  // just before the process was killed, with all its leases
)

func (e event) String() string {
	return fmt.Sprintf("%s %d %s %d", e.what, e.at.UnixNano(), e.lease, e.fence)
}

func parseEvent(line string) (event, error) {
	var (
		e  event
		at int64
	)
	_, err := fmt.Sscanf(line, "%s %d %s %d", &e.what, &at, &e.lease, &e.fence)
	e.at = time.Unix(0, at)
	return e, err
}

// check returns what is wrong with a history of one lock, whose events are in the order of time:
// leases that overlap, fences that do not grow, and gaps between a lease's end and the next grant
// that are longer than they may be.
func check(events []event, longest time.Duration) []string {
	var (
		wrong []string
		live  = map[string]event{}
		dead  = map[string]bool{} // processes: what they still said before they were gone counts no more
		last  int64
		free  time.Time
	)
	for _, e := range events {
		if owner, _, _ := strings.Cut(e.lease, "/"); dead[owner] {
			continue
		}
		switch e.what {
		case granted:
			for other := range live {
				wrong = append(wrong, fmt.Sprintf("%s was granted while %s was valid", e.lease, other))
			}
			if e.fence <= last {
				wrong = append(wrong, fmt.Sprintf("fence %d after %d", e.fence, last))
			}
			if gap := e.at.Sub(free); !free.IsZero() && gap > longest {
				wrong = append(wrong, fmt.Sprintf("nobody had the lock for %v", gap))
			}
			live[e.lease], last = e, e.fence
		case ended:
			delete(live, e.lease)
			free = e.at
		case killed:
			dead[e.lease] = true
			for lease := range live {
				if strings.HasPrefix(lease, e.lease+"/") {
					delete(live, lease)
					free = e.at
				}
			}
		}
	}
	return wrong
}

// The check itself can fail.
func TestCheckFindsWhatIsWrong(t *testing.T) {
	at := func(ms int) time.Time { return time.Unix(1, 0).Add(time.Duration(ms) * time.Millisecond) }
	right := []event{
		{at(0), granted, "1/1", 5}, {at(10), ended, "1/1", 5}, {at(12), granted, "2/1", 9},
		{at(20), killed, "2", 0}, {at(500), granted, "3/1", 10}, {at(600), ended, "3/1", 10},
	}
	if wrong := check(right, time.Second); len(wrong) != 0 {
		t.Errorf("a good history: %v", wrong)
	}
	for name, spoil := range map[string]func([]event){
		"overlap":      func(h []event) { h[1].at, h[1].lease = at(10), "3/1" },
		"fence":        func(h []event) { h[2].fence = 5 },
		"stall":        func(h []event) { h[4].at = at(1400) },
		"wrong victim": func(h []event) { h[3].lease = "1" },
	} {
		h := append([]event(nil), right...)
		spoil(h)
		if wrong := check(h, time.Second); len(wrong) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
}

const (
	historyRedis = "LOCK_TEST_HISTORY_REDIS"
	historyName  = "LOCK_TEST_HISTORY_NAME"
	historyStore = "LOCK_TEST_HISTORY_STORE"

	historyTTL = 400 * time.Millisecond
	brokenly   = "broken"
)

// stealing is a store that is broken: it grants a lock that another has.
type stealing struct{ *redisstore.Store }

func (s stealing) AcquireLock(ctx context.Context, req lock.AcquireRequest) (lock.AcquireReply, error) {
	reply, err := s.Store.AcquireLock(ctx, req)
	if err == nil && reply.Outcome != lock.Granted && rand.IntN(4) == 0 {
		state, err := s.InspectLock(ctx, req.Name, req.Key)
		if err == nil && len(state.Holders) > 0 {
			return lock.AcquireReply{Outcome: lock.Granted, Grant: lock.Grant{Sent: time.Now(), Fence: state.Holders[0].LastFence + 1}}, nil
		}
	}
	return reply, err
}

// TestHistoryProcess is one of the processes of TestHistories.
func TestHistoryProcess(t *testing.T) {
	addr := os.Getenv(historyRedis)
	if addr == "" {
		t.Skip("runs as a process of TestHistories")
	}
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Second})
	defer func() { _ = client.Close() }()
	redisStore, err := redisstore.New(client)
	if err != nil {
		t.Fatal(err)
	}
	defer redisStore.Close()
	store := lock.Store(redisStore)
	if os.Getenv(historyStore) == brokenly {
		store = stealing{redisStore}
	}
	l, err := lock.New(store, "history", lock.WithTTL(historyTTL))
	if err != nil {
		t.Fatal(err)
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		leave = make(chan struct{})
	)
	go func() { // the parent closes it to end the test
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(leave)
	}()
	tell := func(what eventKind, lease string, fence int64) {
		mu.Lock()
		defer mu.Unlock()
		_, _ = fmt.Println(event{time.Now(), what, lease, fence}) // in one write: a death leaves no half of it
	}
	for g := range 8 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-leave:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rand.IntN(2000))*time.Millisecond)
				lease, err := l.Lock(ctx, "k")
				if err != nil {
					cancel()
					continue
				}
				name := fmt.Sprintf("%s/%d.%d", os.Getenv(historyName), g, n)
				tell(granted, name, lease.Fence().Number)
				select {
				case <-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond):
				case <-lease.Context().Done():
				}
				tell(ended, name, lease.Fence().Number)
				_ = lease.Unlock(ctx)
				cancel()
			}
		})
	}
	wg.Wait()
	_ = l.Close()
}

// process is a running TestHistoryProcess.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	read  chan struct{} // closed when its last word has been read
}

// recording runs processes and collects what they say.
type recording struct {
	t     *testing.T
	addr  string
	store string

	mu     sync.Mutex
	events []event
}

func (r *recording) add(e event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *recording) start(name string) *process {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^TestHistoryProcess$", "-test.timeout", "60s")
	cmd.Env = append(os.Environ(), historyRedis+"="+r.addr, historyName+"="+name, historyStore+"="+r.store)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	p := &process{name, cmd, stdin, make(chan struct{})}
	go func() {
		defer close(p.read)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if e, err := parseEvent(lines.Text()); err == nil {
				r.add(e)
			}
		}
	}()
	return p
}

func (r *recording) kill(p *process) {
	r.add(event{time.Now(), killed, p.name, 0})
	_ = p.cmd.Process.Kill()
	<-p.read
	_ = p.cmd.Wait()
}

func (r *recording) end(p *process) {
	_ = p.stdin.Close()
	<-p.read
	_ = p.cmd.Wait()
}

// run has 8 processes compete for a while, of which some are killed and replaced.
func (r *recording) run(kills int) []event {
	var processes []*process
	for i := range 8 {
		processes = append(processes, r.start(strconv.Itoa(i)))
	}
	for i := range kills {
		<-time.After(time.Duration(200+rand.IntN(300)) * time.Millisecond)
		victim := rand.IntN(len(processes))
		r.kill(processes[victim])
		processes[victim] = r.start(fmt.Sprintf("%d-%d", victim, i))
	}
	<-time.After(500 * time.Millisecond)
	for _, p := range processes {
		r.end(p)
	}
	slices.SortStableFunc(r.events, func(a, b event) int { return a.at.Compare(b.at) })
	return r.events
}

// 8 processes with 8 goroutines each, of which one after the other is killed: the leases of the
// living never overlap, fences grow, and a death costs no more than a lease and a heartbeat.
func TestHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for seconds")
	}
	r := &recording{t: t, addr: redistest.Start(t).Addr()}
	events := r.run(10)
	grants := 0
	for _, e := range events {
		if e.what == granted {
			grants++
		}
	}
	t.Logf("%d grants", grants)
	if grants < 100 {
		t.Errorf("only %d grants", grants)
	}
	for _, wrong := range check(events, historyTTL+time.Second+500*time.Millisecond) {
		t.Error(wrong)
	}
}

func TestHistoriesOfABrokenStore(t *testing.T) {
	r := &recording{t: t, addr: redistest.Start(t).Addr(), store: brokenly}
	if wrong := check(r.run(1), time.Minute); len(wrong) == 0 {
		t.Error("nothing was found")
	}
}
