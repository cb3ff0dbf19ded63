package zkstore

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"
)

// watches are the watches that the client has: at most one for each path and kind. The client cannot
// remove a watch, so one of a wait that was given up stays until its node changes, and serves the
// next wait.
type watches struct {
	mu    sync.Mutex
	armed map[watch]struct{}
}

type watch struct {
	path     string
	children bool
}

func (w *watches) init() { w.armed = make(map[watch]struct{}) }

// arm reports whether the caller is to set a watch: there is none, and none is being set.
func (w *watches) arm(of watch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, armed := w.armed[of]
	w.armed[of] = struct{}{}
	return !armed
}

// disarm removes a watch that was not set, or has fired.
func (w *watches) disarm(of watch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.armed, of)
}

func (w *watches) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.armed)
}

// fired is called by the client when a watch has fired, or has ended with its session. It does not
// block.
func (s *Store) fired(path string, event zk.EventType) {
	if event != zk.EventNodeChildrenChanged {
		s.watches.disarm(watch{path, false})
	}
	if event != zk.EventNodeDataChanged {
		s.watches.disarm(watch{path, true})
	}
	s.latches.fired(path)
	var lost []string
	a := &s.entries
	a.mu.Lock()
	if e := a.nodes[path]; e != nil {
		e.guarded = false
		if event == zk.EventNodeDeleted && e.stage == holding { // by another process
			lost = append(lost, e.id)
			a.set(e, gone)
		}
	}
	if k := a.keys[path]; k != nil {
		k.wake()
	}
	if k := a.keys[path[:max(strings.LastIndexByte(path, '/'), 0)]]; k != nil {
		delete(k.facts, path[len(k.path)+1:])
		k.wake()
	}
	a.mu.Unlock()
	s.notify(lost...)
}

// guard watches the node of a hold, so that its holder is notified when another process revokes it.
func (s *Store) guard(e *entry) {
	s.entries.mu.Lock()
	path := e.path()
	s.entries.mu.Unlock()
	_, err := s.getWatched(s.life, path)
	if err == nil {
		return
	}
	s.entries.mu.Lock()
	e.guarded = false
	gone := errors.Is(err, zk.ErrNoNode) && e.stage == holding && e.path() == path
	if gone {
		s.entries.set(e, leaving)
	}
	s.entries.mu.Unlock()
	if gone {
		s.sweepSoon()
		s.notify(e.id)
	}
}

// getWatched returns the facts of a node, and watches it.
func (s *Store) getWatched(ctx context.Context, path string) (*facts, error) {
	of := watch{path, false}
	if !s.watches.arm(of) {
		return s.get(ctx, path, reads)
	}
	f, err := call(ctx, s.calls, reads, func(c *zk.Conn) (*facts, error) {
		data, stat, _, err := c.GetW(path)
		return factsOf(data, stat, err)
	}, nil)
	if err != nil {
		s.watches.disarm(of)
	}
	return f, err
}

// get returns the facts of a node.
func (s *Store) get(ctx context.Context, path string, u urgency) (*facts, error) {
	return call(ctx, s.calls, u, func(c *zk.Conn) (*facts, error) {
		data, stat, err := c.Get(path)
		return factsOf(data, stat, err)
	}, nil)
}

func factsOf(data []byte, stat *zk.Stat, err error) (*facts, error) {
	if err != nil {
		return nil, err
	}
	f := &facts{czxid: stat.Czxid, owner: stat.EphemeralOwner}
	if !f.decode(data) {
		return nil, errForeign
	}
	return f, nil
}

// errForeign is the error of a node that no store has written.
var errForeign = errors.New("a node is not an entry of this version of Lockkeeper")

// children returns the entries of a key, the oldest first.
func (s *Store) children(ctx context.Context, p place, u urgency) ([]child, error) {
	return call(ctx, s.calls, u, func(c *zk.Conn) ([]child, error) {
		names, _, err := c.Children(p.path)
		if errors.Is(err, zk.ErrNoNode) {
			return nil, nil
		}
		return inOrder(names), err
	}, nil)
}

// childrenWatched is children, and watches for changes.
func (s *Store) childrenWatched(ctx context.Context, p place) ([]child, error) {
	of := watch{p.path, true}
	if !s.watches.arm(of) {
		return s.children(ctx, p, reads)
	}
	list, err := call(ctx, s.calls, reads, func(c *zk.Conn) ([]child, error) {
		names, _, _, err := c.ChildrenW(p.path)
		return inOrder(names), err
	}, nil)
	if err != nil {
		s.watches.disarm(of)
	}
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	return list, err
}
