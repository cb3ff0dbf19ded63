package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// forTombstones returns the lease of tombstones, and of messages to other processes.
func (a *leases) forTombstones(ctx context.Context) (clientv3.LeaseID, error) {
	s := a.store
	for {
		s.mu.Lock()
		if a.graves != 0 && time.Since(a.dug) < (tombstonesFor-1)*time.Second {
			defer s.mu.Unlock()
			return a.graves, nil
		}
		other := a.digging
		if other == nil {
			a.digging = make(chan struct{})
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	dug := time.Now()
	reply, err := run(ctx, s, opRelease, func(ctx context.Context, _ bool) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, 2*tombstonesFor)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	close(a.digging)
	a.digging = nil
	if err != nil {
		return 0, err
	}
	a.graves, a.dug = reply.ID, dug
	return a.graves, nil
}

// noGraves forgets the lease of tombstones, if it is this one, which the server has lost.
func (a *leases) noGraves(on clientv3.LeaseID) {
	a.store.mu.Lock()
	defer a.store.mu.Unlock()
	if a.graves == on {
		a.graves = 0
	}
}
