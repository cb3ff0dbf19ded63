package zkstore

import (
	"context"
	"errors"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// remove removes the node of an entry that leaves, once for all calls. It reports whether the node was
// there until then. With an error the node may still be there, and sweep tries again.
func (s *Store) remove(ctx context.Context, e *entry) (removed bool, err error) {
	for {
		s.entries.mu.Lock()
		if e.stage == gone {
			defer s.entries.mu.Unlock()
			return e.removed, nil
		}
		other := e.removing
		if other == nil {
			e.removing = make(chan struct{})
			s.entries.mu.Unlock()
			break
		}
		s.entries.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	removed, err = s.removeNode(ctx, e)
	s.entries.mu.Lock()
	close(e.removing)
	e.removing = nil
	e.removed = e.removed || removed
	removed = e.removed
	if err == nil {
		s.entries.set(e, gone)
	}
	s.entries.mu.Unlock()
	if err != nil {
		s.sweepSoon()
	}
	return removed, err
}

func (s *Store) removeNode(ctx context.Context, e *entry) (removed bool, err error) {
	late := time.NewTimer(s.config.timeout)
	defer late.Stop()
	s.entries.mu.Lock()
	made := e.made
	s.entries.mu.Unlock()
	select {
	case <-made:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-s.life.Done():
		return false, store.ErrClosed
	case <-late.C:
		return false, unconfirmed(writes, store.Timeout, "the request of an entry is still in flight")
	}
	s.entries.mu.Lock()
	name, path, of, stray := e.node.name, e.path(), e.session, e.stray
	s.entries.mu.Unlock()
	switch {
	case of != nil && of.ended():
		return false, nil
	case stray:
		return false, s.removeStray(ctx, e)
	case name == "":
		return false, nil
	}
	err = s.delete(ctx, path)
	if again := errors.Is(err, errLost); again { // once more: the name is that of no other node
		if err = s.delete(ctx, path); errors.Is(err, zk.ErrNoNode) {
			return true, nil
		}
	}
	if errors.Is(err, zk.ErrNoNode) {
		return false, nil
	}
	return err == nil, err
}

// delete deletes a node, whatever its version is.
func (s *Store) delete(ctx context.Context, path string) error {
	_, err := call(ctx, s.calls, finishes, func(c *zk.Conn) (struct{}, error) {
		return struct{}{}, c.Delete(path, -1)
	}, nil)
	return err
}

// removeStray removes all nodes with an entry's ID: the reply to the creation of one was lost.
func (s *Store) removeStray(ctx context.Context, e *entry) error {
	if err := s.sync(ctx, renews); err != nil {
		return err
	}
	list, err := s.children(ctx, e.place, renews)
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.id != nodeID(e.id) {
			continue
		}
		if err := s.delete(ctx, e.place.path+"/"+c.name); err != nil && !errors.Is(err, zk.ErrNoNode) {
			return err
		}
	}
	return nil
}

// leave has an entry leave the queue, or end its hold, for a reason that its waiters get. It returns
// the stage at which it was. The caller removes its node.
func (s *Store) leave(e *entry, reason error) stage {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	was := e.stage
	if was < leaving {
		e.err = reason
		s.entries.set(e, leaving)
	}
	return was
}

// sweepSoon removes the nodes of all entries that leave, in the background, until none is left.
func (s *Store) sweepSoon() {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if s.entries.leaving > 0 && !s.entries.sweeping {
		s.entries.sweeping = s.start(s.sweep)
	}
}

// Pauses between attempts to remove nodes.
const (
	leastPause = 20 * time.Millisecond
	mostPause  = 500 * time.Millisecond
)

func (s *Store) sweep() {
	pause := leastPause
	for {
		s.entries.mu.Lock()
		var list []*entry
		for _, k := range s.entries.keys {
			for _, e := range k.entries {
				if e.stage == leaving && len(list) < maxTogether {
					list = append(list, e)
				}
			}
		}
		if len(list) == 0 || s.life.Err() != nil {
			s.entries.sweeping = false
			s.entries.mu.Unlock()
			return
		}
		s.entries.mu.Unlock()
		failed := each(list, func(e *entry) error {
			_, err := s.remove(s.life, e)
			return err
		})
		if failed == nil {
			pause = leastPause
			continue
		}
		select {
		case <-s.life.Done():
		case <-s.link.changes():
		case <-time.After(pause):
			pause = min(2*pause, mostPause)
		}
	}
}

// settle removes the nodes of this process's entries of a key that have ended, so that no request
// waits for them.
func (s *Store) settle(ctx context.Context, path string) {
	s.entries.mu.Lock()
	var list []*entry
	if k := s.entries.keys[path]; k != nil {
		now := time.Now()
		for _, e := range k.entries {
			if s.entries.over(e, now) {
				list = append(list, e)
			}
		}
	}
	s.entries.mu.Unlock()
	if list != nil {
		_ = each(list, func(e *entry) error {
			_, err := s.remove(ctx, e)
			return err
		})
	}
}

// over reports whether an entry leaves, and has one leave whose time is over. The caller holds mu.
func (a *entries) over(e *entry, now time.Time) bool {
	ends := e.stage == holding || e.stage == waiting && e.awaiting == 0
	if ends && !now.Before(e.until) {
		a.set(e, leaving)
	}
	return e.stage == leaving
}

// drain removes what leaves before the store is closed.
func (s *Store) drain() {
	ctx, cancel := context.WithTimeout(s.life, 500*time.Millisecond)
	defer cancel()
	s.entries.mu.Lock()
	var list []*entry
	for _, k := range s.entries.keys {
		for _, e := range k.entries {
			if e.stage == leaving {
				list = append(list, e)
			}
		}
	}
	s.entries.mu.Unlock()
	_ = each(list, func(e *entry) error {
		_, err := s.remove(ctx, e)
		return err
	})
}
