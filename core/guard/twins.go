package guard

import (
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// twins are the calls of Begin in this process that wait for an attempt in flight to end, by the ID
// of the operation. One call of the store waits for all twins of an operation.
type twins struct {
	mu   sync.Mutex
	byID map[string]*inFlight
}

type inFlight struct {
	ended   chan struct{} // closed when the attempt has ended, or the store has failed
	cancel  context.CancelFunc
	waiting int
}

const (
	// leastPause is the least time between two requests to begin of a waiting call, in case the store
	// reports the end of an attempt that has not ended.
	leastPause = 5 * time.Millisecond
	// failurePause is the same if the store cannot wait, although it may reply to requests to begin.
	failurePause = 250 * time.Millisecond
)

// await blocks until the attempt in flight at an operation may have ended, or the guard is closed.
// It returns false if the context or the timer ends before that, or if as many twins as most wait
// already.
func (g *Guard) await(ctx context.Context, ref store.OperationRef, timeout <-chan time.Time, most int) bool {
	t := &g.twins
	t.mu.Lock()
	f := t.byID[ref.ID]
	if f == nil {
		f = t.begin(g, ref)
	}
	if f.waiting >= most {
		t.mu.Unlock()
		return false
	}
	f.waiting++
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if f.waiting--; f.waiting == 0 {
			f.cancel()
			t.remove(ref.ID, f)
		}
	}()
	select {
	case <-f.ended:
		return ctx.Err() == nil // both may have happened
	case <-g.closing.Done(): // the next request to begin returns ErrClosed
		return true
	case <-timeout:
	case <-ctx.Done():
	}
	return false
}

// begin starts to wait for the attempt in flight. The caller holds mu.
func (t *twins) begin(g *Guard, ref store.OperationRef) *inFlight {
	ctx, cancel := context.WithCancel(context.Background())
	f := &inFlight{ended: make(chan struct{}), cancel: cancel}
	if t.byID == nil {
		t.byID = make(map[string]*inFlight)
	}
	t.byID[ref.ID] = f
	g.calls.Run(func() {
		defer cancel()
		next := time.Now()
		if able, err := store.As[store.AwaitedRecords](g.store); err == nil && able.AwaitOperation(ctx, ref) == nil {
			next = next.Add(leastPause)
		} else {
			next = next.Add(failurePause)
		}
		pause := time.NewTimer(time.Until(next))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.remove(ref.ID, f)
		close(f.ended)
	})
	return f
}

// remove ends the twins' common wait: later twins wait for the next attempt. The caller holds mu.
func (t *twins) remove(id string, f *inFlight) {
	if t.byID[id] == f {
		delete(t.byID, id)
	}
}
