package script

import (
	"context"
	"math"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// NewBatcher returns a batcher of requests to a node. A request is queued for the client's timeout
// at most. send sends a batch of at most maxWork. For a Cluster as a whole, every request is sent
// alone.
func NewBatcher[R batch.Request](n *Node, maxWork int, send func(context.Context, []R) (replied bool)) *batch.Batcher[R] {
	return batch.New(batching(n, maxWork, send))
}

func batching[R batch.Request](n *Node, maxWork int, send func(context.Context, []R) (replied bool)) batch.Config[R] {
	c := batch.Config[R]{
		Server: batchServer{n}, Send: send, Few: batch.MinInFlight, Most: n.maxInFlight(), MaxWork: maxWork,
		Limit: n.owner.config.Timeout,
	}
	if n.server == nil {
		c.Few = math.MaxInt
	}
	return c
}

// batchServer is a node as its batchers see it.
type batchServer struct{ node *Node }

var _ batch.Server = batchServer{}

func (s batchServer) Start(call func()) bool { return s.node.owner.Start(call) }

func (s batchServer) Refuses(u Urgency) error {
	switch {
	case s.node.owner.closed.Load():
		return store.ErrClosed
	case u == Finishing:
		return nil
	}
	return s.node.breaker.Refuses(u == Reading)
}

func (s batchServer) Late(why error, sent bool) error { return s.node.Explain(why, sent) }

func (s batchServer) Missed() { s.node.recordMiss() }

func (s batchServer) Batched(requests int) {
	s.node.owner.telemetry.Batch(context.Background(), requests)
}
