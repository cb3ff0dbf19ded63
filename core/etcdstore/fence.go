package etcdstore

import (
	"context"
	"strconv"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// RaiseFences makes all fences from now on larger than the fences granted before the cluster was
// restored from a backup, which sets back the revisions that fences are made of. Call it after the
// restore, before the first lock is granted, with clocks that are right: it sets the base of fences
// to the time in microseconds, unless it is larger already. Fences then exceed those of a store
// that granted fewer than 15,000 a second on average. It returns nil, an error that matches
// store.ErrUnavailable, or the context's error.
func (s *Store) RaiseFences(ctx context.Context) error {
	for {
		base, mod, revision, err := s.readBase(ctx)
		if err != nil {
			return err
		}
		raised := max(base+revision<<blockBits, time.Now().UnixMicro())
		reply, err := run(ctx, s, opLatch, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
			return s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(s.fenceKey()), "=", mod)).
				Then(clientv3.OpPut(s.fenceKey(), strconv.FormatInt(raised, 10))).Commit()
		})
		if err != nil {
			return err
		}
		if reply.Succeeded {
			s.base.Store(raised)
			return nil
		}
	}
}

// readBase reads the base of fences: 0 if there is none.
func (s *Store) readBase(ctx context.Context) (base, mod, revision int64, err error) {
	reply, err := run(ctx, s, opPrepare, func(ctx context.Context, _ bool) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, s.fenceKey())
	})
	if err != nil {
		return 0, 0, 0, err
	}
	if len(reply.Kvs) == 1 {
		base, mod = baseOf(reply.Kvs), reply.Kvs[0].ModRevision
	}
	return base, mod, reply.Header.Revision, nil
}

// baseOf returns the base of fences from a reply about its key; 0 if there is none.
func baseOf(kvs []*mvccpb.KeyValue) int64 {
	if len(kvs) != 1 {
		return 0
	}
	base, _ := strconv.ParseInt(string(kvs[0].Value), 10, 64)
	return base
}

// fenceBase returns the base of fences. The store that reads none sets it to the time in microseconds,
// so that fences exceed those of a store on Redis or PostgreSQL that was used before.
func (s *Store) fenceBase(ctx context.Context) (int64, error) {
	if base := s.base.Load(); base != 0 {
		return base, nil
	}
	if err := s.checkRelease(ctx); err != nil {
		return 0, err
	}
	key, first := s.fenceKey(), strconv.FormatInt(time.Now().UnixMicro(), 10)
	reply, err := run(ctx, s, opPrepare, func(ctx context.Context, _ bool) (*clientv3.GetResponse, error) {
		reply, err := s.client.Get(ctx, key)
		if err != nil || len(reply.Kvs) > 0 {
			return reply, err
		}
		if _, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).Then(clientv3.OpPut(key, first)).Commit(); err != nil {
			return nil, err
		}
		return s.client.Get(ctx, key)
	})
	if err != nil {
		return 0, err
	}
	base := baseOf(reply.Kvs)
	s.base.Store(base)
	return base, nil
}

// sameBase is the comparison that the base of fences has not been raised.
func (s *Store) sameBase(base int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(s.fenceKey()), "=", strconv.FormatInt(base, 10))
}
