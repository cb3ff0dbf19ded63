package coordination

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
)

// The floors of a hand-over.
const (
	etcdFloor = "a delete and a watch event, on etcd (the floor)"
	zkFloor   = "a delete and a watch event, on ZooKeeper (the floor)"
)

// floor measures the fewest steps of a hand-over: each call returns the time of one.
type floor struct {
	row    string
	server kind
	open   func(ctx context.Context, addr string) (call func(context.Context) (time.Duration, error), stop func(), err error)
}

func (f floor) on() kind { return f.server }

func floors() []floor {
	return []floor{{etcdFloor, etcd, openEtcdFloor}, {zkFloor, zooKeeper, openZKFloor}}
}

// timed returns the time from the call of one client's delete to the event of another one's watch, after
// a rest. It waits for the reply of the delete, too.
func timed[E any](ctx context.Context, remove func() error, events <-chan E) (took time.Duration, err error) {
	contest.Rest(holds)
	removed := make(chan error, 1)
	start := time.Now()
	go func() { removed <- remove() }()
	select {
	case <-events:
		took = time.Since(start)
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	return took, <-removed
}

func openEtcdFloor(ctx context.Context, addr string) (func(context.Context) (time.Duration, error), func(), error) {
	const key = "floor"
	from, err := connectEtcd(addr)
	if err != nil {
		return nil, nil, err
	}
	to, err := connectEtcd(addr)
	if err != nil {
		_ = from.Close()
		return nil, nil, err
	}
	events := to.Watch(ctx, key, clientv3.WithFilterPut())
	return func(ctx context.Context) (time.Duration, error) {
			if _, err := from.Put(ctx, key, ""); err != nil {
				return 0, err
			}
			return timed(ctx, func() error {
				_, err := from.Delete(ctx, key)
				return err
			}, events)
		}, func() {
			_ = from.Close()
			_ = to.Close()
		}, nil
}

func openZKFloor(_ context.Context, addr string) (func(context.Context) (time.Duration, error), func(), error) {
	const path = "/floor"
	from, err := connectZooKeeper(addr, 0)
	if err != nil {
		return nil, nil, err
	}
	to, err := connectZooKeeper(addr, 0)
	if err != nil {
		from.Close()
		return nil, nil, err
	}
	return func(ctx context.Context) (time.Duration, error) {
			if _, err := from.Create(path, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
				return 0, err
			}
			if _, err := to.Sync(path); err != nil {
				return 0, err
			}
			_, _, events, err := to.ExistsW(path)
			if err != nil {
				return 0, err
			}
			return timed(ctx, func() error { return from.Delete(path, -1) }, events)
		}, func() {
			from.Close()
			to.Close()
		}, nil
}
