package etcdstore

import (
	"context"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// watch watches a key, or a prefix, from a revision on, until ctx ends, or the watch is ended by the
// server: then the channel is closed. The watches of a store share a stream, until one is found to hang
// ([Store.hangs]).
func (s *Store) watch(ctx context.Context, at string, prefix bool, from int64) <-chan clientv3.WatchResponse {
	out := make(chan clientv3.WatchResponse)
	opts := []clientv3.OpOption{clientv3.WithRev(from)}
	if prefix {
		opts = append(opts, clientv3.WithPrefix())
	}
	// The client has a stream for each metadata.
	ctx = metadata.AppendToOutgoingContext(ctx, "lockkeeper-stream", s.process+"."+strconv.FormatUint(s.streams.Load(), 10))
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	if !s.start(func() {
		defer close(out)
		defer cancel()
		defer context.AfterFunc(s.life, cancel)()
		call := s.telemetry.Begin(ctx, opWatch.name)
		in := s.client.Watch(ctx, at, opts...) // returns when the server has begun
		call.End(ctx, ctx.Err())
		for reply := range in {
			select {
			case out <- reply:
			case <-ctx.Done():
				return
			}
		}
	}) {
		cancel()
		close(out)
	}
	return out
}

// hangs is called when a watch has missed an event: watches from now on use another stream, which as a
// rule leads to another member.
func (s *Store) hangs(ctx context.Context) {
	s.streams.Add(1)
	s.telemetry.Reconnect(ctx)
}
