package etcdstore

import (
	"context"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// gets reads keys, in one transaction if the server takes it: one without room does not.
func (s *Store) gets(ctx context.Context, op operation, keys []string) ([]*mvccpb.KeyValue, error) {
	steps := make([]clientv3.Op, len(keys))
	for i, at := range keys {
		steps[i] = clientv3.OpGet(at)
	}
	read := op
	read.writes = false
	found, err := run(ctx, s, read, func(ctx context.Context, _ bool) ([]*mvccpb.KeyValue, error) {
		if len(keys) == 1 {
			reply, err := s.client.Get(ctx, keys[0])
			if err != nil {
				return nil, err
			}
			return []*mvccpb.KeyValue{only(reply.Kvs)}, nil
		}
		reply, err := s.client.Txn(ctx).Then(steps...).Commit()
		if err != nil {
			return nil, err
		}
		kvs := make([]*mvccpb.KeyValue, len(keys))
		for i := range keys {
			kvs[i] = only(reply.Responses[i].GetResponseRange().Kvs)
		}
		return kvs, nil
	})
	if !isFull(err) || len(keys) == 1 {
		return found, err
	}
	found = nil
	for _, at := range keys {
		one, err := s.gets(ctx, op, []string{at})
		if err != nil {
			return nil, err
		}
		found = append(found, one...)
	}
	return found, nil
}

func only(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	if len(kvs) != 1 {
		return nil
	}
	return kvs[0]
}
