package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// A latch is a container with a generation, a node with a child for each participant. A new
// participant is created together with a write to the generation. So that node's time of change, by
// the leader's clock, is when the last participant came, its data are the TTL from then on, and its
// number of children is the size of the set. When the TTL is over, the next participant begins
// another generation, by a write to the container that depends on its version, and the process of
// the last participant removes what has expired.

// latch is where the nodes of a latch are.
type latch struct {
	path       string
	version    int32 // of the container's data
	generation int64
	arrived    int
	ends       time.Time // by the leader's clock; zero without participants
}

func (l *latch) current() string { return generationOf(l.path, l.generation) }

func generationOf(path string, generation int64) string {
	return fmt.Sprintf("%s/%d", path, generation)
}

func (s *Store) latchPath(name string) string { return s.root + "/c/" + s.digest("latch", name) }

// CountDownLatch implements store.Latches: four requests if the latch is in use, of which two read, and
// one is a write that tells the leader's time; six for its first participant.
func (s *Store) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (arrived int, err error) {
	if err := s.acceptsNew(ctx); err != nil {
		return 0, err
	}
	done := s.telemetry.Begin(ctx, opLatch)
	defer func() { done.End(ctx, err) }()
	path := s.latchPath(req.Name)
	for range 10 {
		l, err := s.latch(ctx, path, true)
		if err != nil {
			return 0, err
		}
		if l.arrived > 0 {
			over, err := s.expired(ctx, l)
			if err != nil {
				return 0, err
			}
			if over {
				if err := s.nextGeneration(ctx, l); err != nil {
					return 0, err
				}
				continue
			}
		}
		arrived, err := s.countDown(ctx, l, s.digest("participant", req.Name, participant), req.TTL)
		if !errors.Is(err, errAgain) {
			return arrived, err
		}
	}
	return 0, store.Unavailable(store.OtherCause, "the latch changes again and again")
}

// errAgain is the error of a step of a latch that has changed since it was read.
var errAgain = errors.New("the latch has changed")

// countDown adds a participant to a generation.
func (s *Store) countDown(ctx context.Context, l *latch, participant string, ttl time.Duration) (arrived int, err error) {
	if l.arrived >= store.MaxParticipants {
		return 0, fmt.Errorf("%w: a latch has at most %d participants", store.ErrFull, store.MaxParticipants)
	}
	data := strconv.AppendInt(nil, ttl.Microseconds(), 10)
	responses, err := call(ctx, s.calls, writes, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		return c.Multi(
			&zk.CheckVersionRequest{Path: l.path, Version: l.version},
			&zk.CreateRequest{Path: l.current() + "/" + participant, Acl: s.acl, Flags: zk.FlagPersistent},
			&zk.SetDataRequest{Path: l.current(), Data: data, Version: -1},
		)
	}, nil)
	switch {
	case err == nil && len(responses) == 3 && responses[2].Stat != nil:
		s.latches.sweepAfter(s, l.path, l.generation, ttl)
		return int(responses[2].Stat.NumChildren), nil
	case errors.Is(err, zk.ErrNodeExists): // a repeat: it counts, or has counted in the generation before
		stat, err := s.exists(ctx, l.current(), reads)
		if err == nil && stat == nil {
			err = errAgain
		}
		if err != nil {
			return 0, err
		}
		return int(stat.NumChildren), nil
	case errors.Is(err, zk.ErrNoNode), errors.Is(err, zk.ErrBadVersion), errors.Is(err, errLost): // a repeat changes nothing
		return 0, errAgain
	case err == nil:
		return 0, store.Unavailable(store.OtherCause, "the server's reply to a participant of a latch is incomplete")
	}
	return 0, err
}

// latch reads a latch. With create it creates the nodes that are missing; otherwise a latch without
// them has no participants.
func (s *Store) latch(ctx context.Context, path string, create bool) (*latch, error) {
	for range 5 {
		l := &latch{path: path}
		type node struct {
			data []byte
			stat *zk.Stat
		}
		read := func(path string) (node, error) {
			return call(ctx, s.calls, reads, func(c *zk.Conn) (node, error) {
				data, stat, err := c.Get(path)
				return node{data, stat}, err
			}, nil)
		}
		container, err := read(path)
		if err == nil {
			l.version = container.stat.Version
			if l.generation, err = strconv.ParseInt(string(container.data), 10, 64); err != nil {
				return nil, store.Misconfigured(store.OtherCause, fmt.Errorf("node %s is no latch: delete it", path))
			}
			var current node
			if current, err = read(l.current()); err == nil {
				l.read(current.data, current.stat)
				return l, nil
			}
		}
		if !errors.Is(err, zk.ErrNoNode) {
			return nil, err
		}
		if !create {
			return l, nil
		}
		if err := s.createNode(ctx, path, []byte("0"), zk.FlagContainer); err != nil && !errors.Is(err, errLost) {
			return nil, err
		}
		if err := s.createNode(ctx, l.current(), nil, zk.FlagPersistent); err != nil && !errors.Is(err, errLost) {
			return nil, err
		}
	}
	return nil, store.Unavailable(store.OtherCause, "the latch vanishes again and again")
}

// read reads the node of a generation.
func (l *latch) read(data []byte, stat *zk.Stat) {
	l.arrived = int(stat.NumChildren)
	ttl, err := strconv.ParseInt(string(data), 10, 64)
	if l.arrived > 0 && err == nil {
		l.ends = time.UnixMilli(stat.Mtime).Add(time.Duration(ttl) * time.Microsecond)
	}
}

// expired reports whether the TTL of a latch is over, by the leader's clock, which a write tells.
func (s *Store) expired(ctx context.Context, l *latch) (bool, error) {
	path := s.root + "/clock"
	for range 3 {
		stat, err := call(ctx, s.calls, finishes, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, nil, -1) }, nil)
		switch {
		case err == nil:
			return !time.UnixMilli(stat.Mtime).Before(l.ends), nil
		case errors.Is(err, zk.ErrNoNode):
			if err := s.createNode(ctx, path, nil, zk.FlagPersistent); err != nil && !errors.Is(err, errLost) {
				return false, err
			}
		case !errors.Is(err, errLost):
			return false, err
		}
	}
	return false, store.Unavailable(store.OtherCause, "the leader's clock was not read")
}

// nextGeneration begins another generation of a latch, unless another process has, and removes the
// one that has expired.
func (s *Store) nextGeneration(ctx context.Context, l *latch) error {
	next := l.generation + 1
	_, err := call(ctx, s.calls, writes, func(c *zk.Conn) ([]zk.MultiResponse, error) {
		return c.Multi(
			&zk.SetDataRequest{Path: l.path, Data: strconv.AppendInt(nil, next, 10), Version: l.version},
			&zk.CreateRequest{Path: generationOf(l.path, next), Acl: s.acl, Flags: zk.FlagPersistent},
		)
	}, nil)
	for _, of := range []error{zk.ErrBadVersion, zk.ErrNodeExists, zk.ErrNoNode, errLost} {
		if errors.Is(err, of) {
			return nil
		}
	}
	if err == nil {
		s.start(func() { s.removeGeneration(s.life, l.current()) })
	}
	return err
}

// InspectLatch implements store.Latches: two requests, and a write if the latch has participants.
func (s *Store) InspectLatch(ctx context.Context, req store.LatchRequest) (arrived int, err error) {
	if err := s.calls.over(ctx); err != nil {
		return 0, err
	}
	done := s.telemetry.Begin(ctx, opInspect)
	defer func() { done.End(ctx, err) }()
	return s.inspectLatch(ctx, s.latchPath(req.Name))
}

func (s *Store) inspectLatch(ctx context.Context, path string) (arrived int, err error) {
	l, err := s.latch(ctx, path, false)
	if err != nil || l.arrived == 0 {
		return 0, err
	}
	over, err := s.expired(ctx, l)
	if err != nil || over {
		return 0, err
	}
	return l.arrived, nil
}
