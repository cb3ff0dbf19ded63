// Package history has tests record what several processes say of what they hold, while one after the
// other is killed.
//
// The clock is the machine's, which all processes read; tests last for seconds.
package history

import (
	"bufio"
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

// Kind is what happened.
type Kind string

// What happens to a hold, or to a process.
const (
	Granted Kind = "granted" // at the moment at which the caller had it
	Ended   Kind = "ended"   // just before its release was asked for, or when it was not valid any more
	Killed  Kind = "killed"  // just before the process was killed, with all that it held
)

// Event is one thing that happened.
type Event struct {
	At   time.Time
	What Kind
	Hold string // "process/hold", or the process if it was killed
	N    int64  // a fence, or a weight
}

// Process is the name of the process that the event is of.
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

// Child is a process of a recording, as it sees itself.
type Child struct {
	Name string
	// Leave is closed when the process is to end.
	Leave <-chan struct{}

	mu sync.Mutex
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
	return &Child{Name: name, Leave: leave}
}

// Begin tells the parent that the process has a hold, which is valid until then. It reports whether it is
// still: on a busy machine the hold may have run out before its caller got to run.
func (c *Child) Begin(hold string, n int64, until time.Time) bool {
	now := time.Now()
	if !now.Before(until) {
		return false
	}
	c.tell(Event{now, Granted, c.Name + "/" + hold, n})
	return true
}

// End tells the parent that a hold has ended: now, or when it was valid until, if its caller got to run later.
func (c *Child) End(hold string, n int64, until time.Time) {
	now := time.Now()
	if until.Before(now) {
		now = until
	}
	c.tell(Event{now, Ended, c.Name + "/" + hold, n})
}

func (c *Child) tell(e Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = fmt.Println(e) // in one write: a death leaves no half of it
}

// Recording runs processes and collects what they say.
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
	read  chan struct{} // closed when its last word has been read
}

func (r *Recording) add(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
}

func (r *Recording) start(name string) *process {
	r.t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^"+r.Test+"$", "-test.timeout", "60s") //nolint:gosec // the test's own binary
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

func (r *Recording) end(p *process) {
	_ = p.stdin.Close()
	<-p.read
	_ = p.cmd.Wait()
}

// Run has processes compete for a while, of which some are killed and replaced, and returns what they
// said in the order of time.
func (r *Recording) Run(t *testing.T, processes, kills int) []Event {
	t.Helper()
	r.t = t
	var running []*process
	for i := range processes {
		running = append(running, r.start(strconv.Itoa(i)))
	}
	for i := range kills {
		<-time.After(time.Duration(200+rand.IntN(300)) * time.Millisecond)
		victim := rand.IntN(len(running))
		r.kill(running[victim])
		running[victim] = r.start(fmt.Sprintf("%d-%d", victim, i))
	}
	<-time.After(500 * time.Millisecond)
	for _, p := range running {
		r.end(p)
	}
	slices.SortStableFunc(r.events, func(a, b Event) int { return a.At.Compare(b.At) })
	return r.events
}
