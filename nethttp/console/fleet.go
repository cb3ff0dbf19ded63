package console

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// fleet reads what the processes say of themselves, once for all viewers.
type fleet struct {
	store store.Documents
	own   *presence.Presence
	rules []inspect.RulesInspector // of this process
	life  context.Context          // of what reads in the background
	end   context.CancelFunc

	mu       sync.Mutex
	reading  sync.WaitGroup // its Go is called under mu, before stopped
	stopped  bool
	last     snapshot
	watching snapshot // the last one with histories
	asked    map[bool]*question

	left     []operate.Trouble
	leftErr  error
	leftAt   time.Time
	leftDone chan struct{} // of a listing that runs, or nil
}

// snapshot is the fleet at a time. This process is always in it.
type snapshot struct {
	processes []presence.Process
	troubles  []operate.Trouble
	at        time.Time
	err       error // of the store: then only this process is known
}

type question struct {
	done   chan struct{}
	answer snapshot
}

const (
	// fresh is how long a snapshot is shown: a little less than the pause between two of a page.
	fresh = 1800 * time.Millisecond
	// slowest bounds the reading of a snapshot.
	slowest = 3 * time.Second
	// leftFresh is how long the work that is left is shown before it is looked for again, and
	// leftSlowest how long that may take.
	leftFresh, leftSlowest = time.Minute, 10 * time.Second
)

func (f *fleet) begin(st store.Documents, own *presence.Presence, rules []inspect.RulesInspector) {
	f.store, f.own, f.rules, f.asked = st, own, rules, make(map[bool]*question)
	f.life, f.end = context.WithCancel(context.Background())
}

// stop ends what reads in the background, and waits for it.
func (f *fleet) stop() {
	f.mu.Lock()
	f.stopped = true
	f.mu.Unlock()
	f.end()
	f.reading.Wait()
}

// get returns the fleet, with histories if watch is true.
func (f *fleet) get(ctx context.Context, watch bool) (snapshot, error) {
	f.mu.Lock()
	last := f.last
	if watch {
		last = f.watching
	}
	if time.Since(last.at) < fresh || f.stopped {
		f.mu.Unlock()
		return last, nil
	}
	q := f.asked[watch]
	if q == nil {
		q = &question{done: make(chan struct{})}
		f.asked[watch] = q
		f.reading.Go(func() { f.ask(watch, q) })
	}
	f.mu.Unlock()
	select {
	case <-q.done:
		return q.answer, nil
	case <-ctx.Done():
		return snapshot{}, context.Cause(ctx)
	}
}

// ask reads the fleet for all who wait for it: none of their contexts ends it.
func (f *fleet) ask(watch bool, q *question) {
	ctx, cancel := context.WithTimeout(f.life, slowest)
	defer cancel()
	read := presence.Fleet
	if watch {
		read = presence.Watch
	}
	processes, err := read(ctx, f.store)
	own := f.own.Process()
	if len(own.Rules) == 0 { // the presence may have begun without them
		for _, r := range f.rules {
			own.Rules = append(own.Rules, presence.RulesOf(r))
		}
	}
	if i := slices.IndexFunc(processes, func(p presence.Process) bool { return p.ID == own.ID }); i >= 0 {
		processes[i] = own
	} else {
		processes = append(processes, own)
	}
	q.answer = snapshot{processes, operate.Troubles(processes), time.Now(), err}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.last = q.answer
	if watch {
		f.watching = q.answer
	}
	delete(f.asked, watch)
	close(q.done)
}

// wrong returns the number of troubles by the last snapshot, without waiting for another one.
func (f *fleet) wrong() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := f.last
	if f.watching.at.After(last.at.Add(-time.Minute)) {
		last = f.watching
	}
	return operate.Wrong(operate.Sort(slices.Concat(last.troubles, f.left)))
}

// waiting returns the work that waits for a person, as it was up to a minute ago. It waits for a
// listing for a short time only: the next page has what it finds.
func (f *fleet) waiting(ctx context.Context, processes []presence.Process) (left []operate.Trouble, age time.Duration, err error) {
	f.mu.Lock()
	done := f.leftDone
	if done == nil && time.Since(f.leftAt) >= leftFresh && !f.stopped {
		done = make(chan struct{})
		f.leftDone = done
		f.reading.Go(func() { f.lookForWork(processes, done) })
	}
	f.mu.Unlock()
	if done != nil {
		const patience = 30 * time.Millisecond
		timer := time.NewTimer(patience)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.leftAt.IsZero() {
		return nil, -1, nil
	}
	return f.left, time.Since(f.leftAt), f.leftErr
}

func (f *fleet) lookForWork(processes []presence.Process, done chan struct{}) {
	ctx, cancel := context.WithTimeout(f.life, leftSlowest)
	defer cancel()
	left, err := operate.Left(ctx, f.store, processes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.leftErr, f.leftAt, f.leftDone = left, err, time.Now(), nil
	close(done)
}
