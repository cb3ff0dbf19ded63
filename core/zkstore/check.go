package zkstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Check implements store.Checker. It finds
//   - a session that is shorter than the one that was asked for;
//   - a server without containers, as those before ZooKeeper 3.5.3 are;
//   - an ensemble of a single server, or of an even number of them.
//
// It needs no four-letter words. It skips what the store's credentials do not let it read.
func (s *Store) Check(ctx context.Context) (findings []store.Finding, err error) {
	if err := s.Ping(ctx); err != nil {
		return nil, err
	}
	if current := s.link.session(); current != nil && current.length < s.config.session {
		findings = append(findings, store.Finding{
			Found:   fmt.Sprintf("the server has granted a session of %v, and %v were asked for", current.length, s.config.session),
			Weakens: fmt.Sprintf("locks and semaphores with a TTL above %v are refused", current.longest()),
			Remedy:  "Raise maxSessionTimeout in zoo.cfg of every server, or ask for a shorter session by zkstore.WithSession, and set shorter TTLs",
		})
	}
	switch err := s.checkContainers(ctx); {
	case errors.Is(err, store.ErrMisconfigured) && store.CauseOf(err) == store.WrongServer:
		findings = append(findings, store.Finding{
			Found:   "the server has no containers",
			Weakens: "no lock, semaphore or latch works",
			Remedy:  "Use ZooKeeper 3.5.3 or later",
			Refused: store.WrongServer,
		})
	case err != nil:
		return nil, err
	}
	members, err := s.members(ctx)
	switch {
	case err != nil:
		return nil, err
	case members < 0:
	case members < 2:
		findings = append(findings, store.Finding{
			Found:   "the ensemble is a single server",
			Weakens: "while it is down no lock can be acquired or renewed, and its disk is the only copy of all nodes",
			Remedy:  "Use an ensemble of three or five servers",
		})
	case members%2 == 0:
		findings = append(findings, store.Finding{
			Found:   fmt.Sprintf("the ensemble has %d servers, an even number", members),
			Weakens: "it survives no more failures than with one server less",
			Remedy:  "Add a server, or remove one",
		})
	}
	return findings, nil
}

// checkContainers creates a container, as every key needs one.
func (s *Store) checkContainers(ctx context.Context) error {
	path := s.root + "/check"
	if err := s.createNode(ctx, path, nil, zk.FlagContainer); err != nil {
		return err
	}
	if err := s.delete(ctx, path); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	return nil
}

// members returns the number of the ensemble's servers, and -1 if it cannot be read.
func (s *Store) members(ctx context.Context) (int, error) {
	data, err := call(ctx, s.calls, reads, func(c *zk.Conn) ([]byte, error) {
		data, _, err := c.Get("/zookeeper/config")
		return data, err
	}, nil)
	switch {
	case errors.Is(err, zk.ErrNoNode), store.CauseOf(err) == store.Permission:
		return -1, nil
	case err != nil:
		return 0, err
	}
	return bytes.Count(append([]byte("\n"), data...), []byte("\nserver.")), nil
}
