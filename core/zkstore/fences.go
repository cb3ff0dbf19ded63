package zkstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// fenceBits is how many bits of a fence number the fences of one hold.
const fenceBits = 6

// A hold has at most so many fences.
var _ [1<<fenceBits - store.MaxFences]struct{}

// fenceBase returns the base of fences, to which the number of the entry's transaction is added. The
// first process writes the time in µs, so that fences are larger than those of a store on Redis or
// PostgreSQL that was used before.
func (s *Store) fenceBase(ctx context.Context) (int64, error) {
	if base := s.base.Load(); base != 0 {
		return base, nil
	}
	path := s.root + "/fence"
	for range 3 {
		data, err := call(ctx, s.calls, reads, func(c *zk.Conn) ([]byte, error) {
			data, _, err := c.Get(path)
			return data, err
		}, nil)
		switch {
		case err == nil:
			base, err := strconv.ParseInt(string(data), 10, 64)
			if err != nil || base <= 0 {
				return 0, store.Misconfigured(store.OtherCause, fmt.Errorf("node %s is no base of fences: delete it, "+
					"and raise what remembers fences", path))
			}
			s.base.Store(base)
			return base, nil
		case !errors.Is(err, zk.ErrNoNode):
			return 0, err
		}
		now := strconv.AppendInt(nil, time.Now().UnixMicro(), 10)
		if err := s.createNode(ctx, path, now, zk.FlagPersistent); err != nil && !errors.Is(err, errLost) {
			return 0, err
		}
	}
	return 0, store.Unavailable(store.OtherCause, "the base of fences was not written")
}

// createNode creates a node, which may exist, and those above it: the store's root and what is above
// that as lasting nodes, others as containers.
func (s *Store) createNode(ctx context.Context, path string, data []byte, flag int32) error {
	for range 2 {
		_, err := call(ctx, s.calls, writes, func(c *zk.Conn) (string, error) {
			if flag == zk.FlagContainer {
				return c.CreateContainer(path, data, flag, s.acl)
			}
			return c.Create(path, data, flag, s.acl)
		}, nil)
		switch {
		case errors.Is(err, zk.ErrNodeExists):
			return nil
		case unimplemented(err):
			return store.Misconfigured(store.WrongServer, errors.New("the server has no containers: the store needs ZooKeeper 3.5.3 or later"))
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
		parent := path[:max(strings.LastIndexByte(path, '/'), 0)]
		if parent == "" {
			return err
		}
		above := int32(zk.FlagContainer)
		if len(parent) <= len(s.root) {
			above = zk.FlagPersistent
		}
		if err := s.createNode(ctx, parent, nil, above); err != nil {
			return err
		}
	}
	return store.Unavailable(store.OtherCause, "the parent of "+path+" vanishes again and again")
}
