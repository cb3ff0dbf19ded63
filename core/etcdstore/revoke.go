package etcdstore

import (
	"context"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// RevokeLease implements store.LeaseRevoker: a read, and a write that deletes the entry and puts its name
// into the inbox of its process.
func (s *Store) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	path := s.path(name, key)
	s.settle(ctx, path)
	kvs, revision, err := s.page(ctx, path, clientv3.GetPrefixRangeEnd(path), 0)
	if err != nil {
		return false, err
	}
	seen := snapshotOf(revision, kvs)
	for _, hold := range seen.queue().Holds {
		if e := seen.entries[hold.ID]; e.firstFence() <= fence && fence <= e.lastFence() {
			return s.revoke(ctx, path, &e)
		}
	}
	return false, nil
}

func (s *Store) revoke(ctx context.Context, path string, e *entry) (bool, error) {
	own := e.process == s.process
	steps := []clientv3.Op{clientv3.OpDelete(e.at)}
	var on clientv3.LeaseID
	if !own {
		var err error
		on, err = s.leases.forTombstones(ctx) // which ends, also if that process has, and this one lives on
		if err != nil && !isFull(err) {
			return false, err
		}
		if err == nil {
			steps = append(steps, clientv3.OpPut(s.inboxOf(e.process)+e.ID, path, clientv3.WithLease(on)))
		}
	}
	lost := false
	ended, err := run(ctx, s, opRelease, func(ctx context.Context, repeated bool) (bool, error) {
		reply, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(e.at), "=", e.Created)).Then(steps...).Commit()
		if lost = isLeaseGone(err); lost {
			return false, nil // an answer, and no failure
		}
		return err == nil && (reply.Succeeded || repeated), err
	})
	if lost {
		s.leases.noGraves(on)
		return s.revoke(ctx, path, e)
	}
	if isFull(err) { // a transaction is refused, and a deletion is not; the holder notices at its next renewal
		var found removed
		found, err = s.removeOne(ctx, e.at)
		ended = err == nil && found.before[0] != nil
	}
	if ended && own {
		s.wasRevoked(path, e.ID)
	}
	return ended, err
}

// wasRevoked ends a hold of this process that was revoked, and notifies its holder.
func (s *Store) wasRevoked(path, id string) {
	s.mu.Lock()
	if r := s.find(path, id); r != nil && r.stage == holding {
		s.endRequest(r, nil)
	}
	s.mu.Unlock()
	s.lost.Call(id)
}

// NotifyLost implements store.LeaseRevoker: f is called for holds that were revoked, by any process, or
// whose lease the server has ended.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.lost.Add(f) }

// openInbox starts the watch of the process's inbox, once.
func (s *Store) openInbox() { s.inbox.Do(func() { s.start(s.readInbox) }) }

// readInbox notifies holders whose holds other processes have revoked.
func (s *Store) readInbox() {
	inbox := s.inboxOf(s.process)
	pause := backoff.Growing{Min: keepEvery / 10, Max: 5 * time.Second}
	for s.life.Err() == nil {
		kvs, revision, err := s.page(s.life, inbox, clientv3.GetPrefixRangeEnd(inbox), 0)
		if err == nil {
			for _, kv := range kvs {
				s.read(string(kv.Key), string(kv.Value))
			}
			pause.Reset()
			ctx, cancel := context.WithCancel(s.life)
			for reply := range s.watch(ctx, inbox, true, revision+1) {
				if reply.Err() != nil {
					break
				}
				for _, event := range reply.Events {
					if event.Type == clientv3.EventTypePut {
						s.read(string(event.Kv.Key), string(event.Kv.Value))
					}
				}
			}
			cancel()
		}
		if !backoff.Sleep(s.life, pause.Next()) {
			return
		}
	}
}

// read reads a message of the inbox.
func (s *Store) read(at, path string) {
	s.wasRevoked(path, at[strings.LastIndexByte(at, '/')+1:])
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sentence(&condemned{deletion: deletion{at: at}, done: make(chan struct{})})
}
