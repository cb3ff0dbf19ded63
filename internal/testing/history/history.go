// Package history records the holds of several competing processes, which are killed one after the
// other.
//
// All processes read the machine's clock; tests last for seconds.
package history

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
)

// Kind is the kind of an event.
type Kind string

// What happens to a hold, or to a process.
const (
	Granted Kind = "granted" // when the call had returned
	Ended   Kind = "ended"   // just before its release, or when it expired
	Killed  Kind = "killed"  // just before the process was killed, with all its holds
)

// Event is the beginning or the end of a hold, or of a process.
type Event struct {
	At   time.Time
	What Kind
	Hold string // "process/hold", or the process if it was killed
	N    int64  // a fence, or a weight
}

// Process returns the name of the event's process.
func (e Event) Process() string {
	process, _, _ := strings.Cut(e.Hold, "/")
	return process
}

func (e Event) String() string {
	return fmt.Sprintf("%s %d %s %d", e.What, e.At.UnixNano(), e.Hold, e.N)
}

func parse(line string) (Event, error) {
	var (
		e  Event
		at int64
	)
	_, err := fmt.Sscanf(line, "%s %d %s %d", &e.What, &at, &e.Hold, &e.N)
	e.At = time.Unix(0, at)
	return e, err
}

const nameEnv = "LOCKKEEPER_TEST_HISTORY"

// Child is this process, if it is one of a recording.
type Child struct {
	Name string

	leave <-chan struct{} // closed when the process is to end
	mu    sync.Mutex
}

// NewChild skips a test that does not run as a process of a recording.
func NewChild(t *testing.T) *Child {
	t.Helper()
	name := os.Getenv(nameEnv)
	if name == "" {
		t.Skip("runs as a process of another test")
	}
	leave := make(chan struct{})
	go func() { // the parent closes it to end the test
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(leave)
	}()
	return &Child{Name: name, leave: leave}
}

// Hold is a lock or a permit of a process.
type Hold interface {
	Context() context.Context
	ValidUntil() time.Time
}

// Compete makes goroutines acquire, hold for up to a time, and release, until the process is to end.
// acquire returns a hold, its fence or weight, and what releases it.
func (c *Child) Compete(goroutines int, longest time.Duration, acquire func(context.Context) (Hold, int64, func(), error)) {
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-c.leave:
					return
				default:
				}
				c.compete(fmt.Sprintf("%d.%d", g, i), longest, acquire)
			}
		})
	}
	wg.Wait()
}

func (c *Child) compete(name string, longest time.Duration, acquire func(context.Context) (Hold, int64, func(), error)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(1+rand.IntN(2000))*time.Millisecond)
	defer cancel()
	hold, n, release, err := acquire(ctx)
	if err != nil {
		return
	}
	if c.begin(name, n, hold.ValidUntil()) {
		select {
		case <-time.After(rand.N(longest)):
		case <-hold.Context().Done():
		}
		c.end(name, n, hold.ValidUntil())
	}
	release()
}

// begin reports a hold to the parent, and whether it is still valid: on a busy machine it may have
// expired before its caller ran.
func (c *Child) begin(hold string, n int64, until time.Time) bool {
	now := time.Now()
	if !now.Before(until) {
		return false
	}
	c.report(Event{now, Granted, c.Name + "/" + hold, n})
	return true
}

// end reports the end of a hold to the parent: now, or its expiry if that was before.
func (c *Child) end(hold string, n int64, until time.Time) {
	now := time.Now()
	if until.Before(now) {
		now = until
	}
	c.report(Event{now, Ended, c.Name + "/" + hold, n})
}

func (c *Child) report(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Println(e) // in one write, so that a death leaves no half of it
}

// Recording runs processes and collects their events.
type Recording struct {
	Test string   // the name of the test that is one of the processes
	Env  []string // of the processes, beside this one's
	// Dead is called after each kill, if it is not nil.
	Dead func(process string)

	t      *testing.T
	mu     sync.Mutex
	events []Event
}

// process is a running test.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	read  chan struct{} // closed when its last event has been read
}

func (r *Recording) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *Recording) granted() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return grants(r.events)
}

func (r *Recording) start(name string) *process {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^"+r.Test+"$", "-test.timeout", "10m") //nolint:gosec // the test's own binary
	cmd.Env = append(append(os.Environ(), r.Env...), nameEnv+"="+name)
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
			if e, err := parse(lines.Text()); err == nil {
				r.add(e)
			}
		}
	}()
	return p
}

func (r *Recording) kill(p *process) {
	r.add(Event{time.Now(), Killed, p.name, 0})
	_ = p.cmd.Process.Kill()
	<-p.read
	_ = p.cmd.Wait()
	if r.Dead != nil {
		r.Dead(p.name)
	}
}

// awaitGrants waits until there are n grants more: also on a slow machine, the processes get on between two
// kills.
func (r *Recording) awaitGrants(n int) {
	want := r.granted() + n
	for began := time.Now(); r.granted() < want; <-time.After(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			r.t.Errorf("fewer than %d grants in a minute", n)
			return
		}
	}
}

// Run starts processes, kills and replaces some of them, and returns their events in the order of
// time.
func (r *Recording) Run(t *testing.T, processes, kills int) []Event {
	t.Helper()
	r.t = t
	var running []*process
	for i := range processes {
		running = append(running, r.start(strconv.Itoa(i)))
	}
	for i := range kills {
		r.awaitGrants(25)
		<-time.After(rand.N(300 * time.Millisecond))
		victim := rand.IntN(len(running))
		r.kill(running[victim])
		running[victim] = r.start(fmt.Sprintf("%d-%d", victim, i))
	}
	<-time.After(500 * time.Millisecond)
	for _, p := range running {
		_ = p.stdin.Close() // ends it
	}
	for _, p := range running {
		<-p.read
		_ = p.cmd.Wait()
	}
	slices.SortStableFunc(r.events, func(a, b Event) int { return a.At.Compare(b.At) })
	return r.events
}

// WantGrants checks that there are so many grants.
func WantGrants(t *testing.T, events []Event, least int) {
	t.Helper()
	if n := grants(events); n < least {
		t.Errorf("only %d grants", n)
	}
}

func grants(events []Event) int {
	n := 0
	for _, e := range events {
		if e.What == Granted {
			n++
		}
	}
	return n
}
