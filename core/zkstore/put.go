package zkstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// put creates the node of an entry, and returns the entries of its key as they were then or later,
// and when a request was sent that shows that the session was alive. One of the entry's own nodes
// whose creation had no reply is found again by its ID. The caller has claimed the entry. After an
// error it has the entry leave, unless it still waits.
//
// No read after it misses an older entry that is still there: the server that has replied to the
// creation has seen all of them.
func (s *Store) put(ctx context.Context, e *entry) (list []child, sent time.Time, err error) {
	inFlight := false
	s.entries.mu.Lock()
	made := e.made
	s.entries.mu.Unlock()
	defer func() {
		if !inFlight {
			close(made)
		}
	}()
	for range 5 {
		if err := s.calls.over(ctx); err != nil {
			return nil, sent, err
		}
		sent = time.Now()
		c, err := s.earlier(ctx, e)
		if err != nil {
			return nil, sent, err
		}
		if c.name == "" {
			c, err = s.create(ctx, e)
		}
		switch {
		case errors.Is(err, errLeft):
			inFlight = true
			return nil, sent, err
		case errors.Is(err, zk.ErrNoNode):
			if err := s.createNode(ctx, e.place.path, s.shown(e.place), zk.FlagContainer); err != nil && !errors.Is(err, errLost) {
				return nil, sent, err
			}
			continue
		case errors.Is(err, errLost):
			if c, err = s.refind(ctx, e); err != nil {
				return nil, sent, err
			}
			if c.name == "" {
				continue
			}
		case err != nil:
			return nil, sent, err
		}
		list, err = s.arrived(ctx, e, c)
		if !errors.Is(err, errVoid) {
			return list, sent, err
		}
	}
	return nil, sent, store.Unavailable(store.OtherCause, "the nodes of an entry vanish again and again")
}

// errVoid is the error of an entry whose node is not there any more, or belongs to another session.
var errVoid = errors.New("the node of the entry is gone")

// create creates the node of an entry, in place of the one that it has, unless that has ended with its
// session. If the caller leaves before it is over, the entry gets the node later.
func (s *Store) create(ctx context.Context, e *entry) (child, error) {
	s.entries.mu.Lock()
	if e.stage >= leaving {
		s.entries.mu.Unlock()
		return child{}, errReleased
	}
	a := attempt{made: e.made, node: e.node, session: e.session}
	if e.node.name != "" {
		delete(s.entries.nodes, e.path())
		if e.session == nil || !e.session.ended() { // nil: the server's state of the node is not known yet
			a.replaces = e.path()
		}
	}
	e.stray, e.node, e.session = false, child{}, nil
	number := e.number
	if e.tries {
		number = trying
	}
	req := &zk.CreateRequest{
		Path: e.place.path + "/" + childName(e.id, e.weight, number), Data: e.facts().encode(), Acl: s.acl, Flags: zk.FlagEphemeralSequential,
	}
	s.entries.mu.Unlock()
	path, err := call(ctx, s.calls, writes, func(c *zk.Conn) (string, error) {
		if a.replaces == "" {
			return c.Create(req.Path, req.Data, req.Flags, req.Acl)
		}
		replies, err := c.Multi(&zk.DeleteRequest{Path: a.replaces, Version: -1}, req)
		if err == nil && len(replies) != 2 {
			err = zk.ErrConnectionClosed // its node is found again
		}
		if err != nil {
			return "", err
		}
		return replies[1].String, nil
	}, func(path string, err error) {
		_, _ = s.created(e, a, path, s.calls.explainLate(err))
		close(a.made)
	})
	if errors.Is(err, errLeft) {
		return child{}, err
	}
	return s.created(e, a, path, err)
}

// attempt is a request that creates a node of an entry.
type attempt struct {
	made     chan struct{} // of the entry
	replaces string        // the path of the node before, which may be there
	node     child         // the one before
	session  *session
}

// errReleased is the error of a request that was released before it was granted.
var errReleased = fmt.Errorf("%w: the request was released", store.ErrUnavailable)

// created records the result of a creation.
func (s *Store) created(e *entry, a attempt, path string, err error) (child, error) {
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	switch {
	case errors.Is(err, errLost), errors.Is(err, store.ErrClosed):
		e.stray = true
		return child{}, err
	case err != nil:
		if a.replaces != "" && !errors.Is(err, zk.ErrNoNode) { // the node before is still there
			s.entries.adopt(e, a.node)
			e.session = a.session
		}
		return child{}, err
	}
	c, ok := parseChild(path[len(e.place.path)+1:])
	if !ok {
		return c, store.Unavailable(store.OtherCause, fmt.Sprintf("the server created %q", path))
	}
	s.entries.adopt(e, c)
	return c, nil
}

// adopt gives an entry its node. The caller holds mu.
func (a *entries) adopt(e *entry, c child) {
	e.node, e.stray = c, false
	a.nodes[e.path()] = e
	if k := a.keys[e.place.path]; k != nil {
		k.wake()
	}
}

// earlier returns the node of an entry whose earlier creation was given up and had no reply, if it has one. A
// second node would wait behind that one for as long as the session lasts.
func (s *Store) earlier(ctx context.Context, e *entry) (child, error) {
	s.entries.mu.Lock()
	stray := e.stray
	s.entries.mu.Unlock()
	if !stray {
		return child{}, nil
	}
	return s.refind(ctx, e)
}

// refind finds the node of an entry whose creation had no reply. Without one, it was not created, and
// never will be: a session's requests are carried out in order, and not after it has moved to another
// server.
func (s *Store) refind(ctx context.Context, e *entry) (c child, err error) {
	if err := s.sync(ctx, reads); err != nil {
		return c, err
	}
	list, err := s.children(ctx, e.place, reads)
	if err != nil {
		return c, err
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	for _, other := range list {
		if other.id == nodeID(e.id) {
			s.entries.adopt(e, other)
			return other, nil
		}
	}
	e.stray = false
	return c, nil
}

// arrived returns the entries of an entry's key, and learns the number of the transaction that has
// created its node. It returns errVoid if the node is not one of the present session.
func (s *Store) arrived(ctx context.Context, e *entry, c child) (list []child, err error) {
	base, err := s.fenceBase(ctx)
	if err != nil {
		return nil, err
	}
	var stat *zk.Stat
	err = each([]func() error{
		func() (err error) {
			list, err = s.children(ctx, e.place, reads)
			return err
		},
		func() (err error) {
			stat, err = s.exists(ctx, e.place.path+"/"+c.name, reads)
			return err
		},
	}, func(f func() error) error { return f() })
	if err != nil {
		return nil, err
	}
	current := s.link.session()
	if stat == nil || current == nil || stat.EphemeralOwner != current.id {
		return nil, errVoid
	}
	s.entries.mu.Lock()
	defer s.entries.mu.Unlock()
	if e.node.name != c.name {
		return nil, errVoid
	}
	e.session, e.czxid, e.fence = current, stat.Czxid, base+stat.Czxid<<fenceBits
	if e.number == 0 {
		e.number = e.fence
		for _, other := range list {
			if other.name == c.name {
				break
			}
			e.number = max(e.number, other.place+1)
		}
	}
	return list, nil
}

// exists returns what the server says of a node; nil if there is none.
func (s *Store) exists(ctx context.Context, path string, u urgency) (*zk.Stat, error) {
	return call(ctx, s.calls, u, func(c *zk.Conn) (*zk.Stat, error) {
		found, stat, err := c.Exists(path)
		if err != nil || !found {
			return nil, err
		}
		return stat, nil
	}, nil)
}
