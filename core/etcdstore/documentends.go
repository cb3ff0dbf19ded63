package etcdstore

import (
	"context"
	"errors"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// documentEnds are the ends of documents that this process has put, by their keys: a lease of the
// server lasts for whole seconds.
type documentEnds struct {
	store *Store

	mu      sync.Mutex
	of      map[string]documentEnd
	reaping bool // the goroutine runs
}

type documentEnd struct {
	on       clientv3.LeaseID
	revision int64 // of the put
	end      time.Time
	timer    *time.Timer
}

// find returns when the document of a key ends, if it is on a lease of this process.
func (e *documentEnds) find(at string, on clientv3.LeaseID) (time.Time, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	it := e.of[at]
	return it.end, on != 0 && it.on == on
}

// add notes a put, unless there was a later one.
func (e *documentEnds) add(at string, on clientv3.LeaseID, revision int64, end time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.of == nil {
		e.of = make(map[string]documentEnd)
	}
	switch old, ok := e.of[at]; {
	case ok && old.revision > revision:
		return
	case ok:
		old.timer.Stop()
	}
	e.of[at] = documentEnd{on, revision, end, time.AfterFunc(time.Until(end), e.ring)}
}

func (e *documentEnds) remove(at string, on clientv3.LeaseID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if it, ok := e.of[at]; ok && it.on == on {
		it.timer.Stop()
		delete(e.of, at)
	}
}

// ring is called at the end of a document.
func (e *documentEnds) ring() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.reaping {
		e.reaping = e.store.start(e.reap)
	}
}

// reap ends the documents whose time is over, until none is left.
func (e *documentEnds) reap() {
	pause := backoff.Growing{Min: 20 * time.Millisecond, Max: 500 * time.Millisecond}
	for {
		switch ended, err := e.settle(e.store.life); {
		case err != nil:
			backoff.Sleep(e.store.life, pause.Next())
		case ended:
			pause.Reset()
		}
		e.mu.Lock()
		if e.reaping = e.store.life.Err() == nil && len(e.over()) > 0; !e.reaping {
			e.mu.Unlock()
			return
		}
		e.mu.Unlock()
	}
}

// settle ends the documents whose time is over, and reports whether there was any. It ends with the
// first error of a server that does not reply. One that refuses is left to its leases.
func (e *documentEnds) settle(ctx context.Context) (ended bool, err error) {
	e.mu.Lock()
	over := e.over()
	e.mu.Unlock()
	for at, on := range over {
		switch err := e.store.endDocument(ctx, at, on); {
		case err != nil && (store.Down(err) || errors.Is(err, store.ErrOverloaded) || ctx.Err() != nil):
			return ended, err
		case err != nil:
			e.remove(at, on)
		}
		ended = true
	}
	return ended, nil
}

// over returns the leases of documents whose time is over, by their keys. The caller holds mu.
func (e *documentEnds) over() map[string]clientv3.LeaseID {
	all, now := make(map[string]clientv3.LeaseID), time.Now()
	for at, it := range e.of {
		if !now.Before(it.end) {
			all[at] = it.on
		}
	}
	return all
}

// stop stops all timers.
func (e *documentEnds) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, it := range e.of {
		it.timer.Stop()
	}
}
