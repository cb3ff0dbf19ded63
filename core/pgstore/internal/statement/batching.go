package statement

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Batch returns a batcher of calls that share statements. The calls themselves ask the breaker.
func Batch[R batch.Request](db *Client, config batch.Config[R]) *batch.Batcher[R] {
	config.Server, config.Limit = batchServer{db}, db.config.Timeout
	return batch.New(config)
}

// batchServer is the client as a batcher's server.
type batchServer struct{ db *Client }

func (s batchServer) Start(call func()) bool { return s.db.Start(call) }

func (s batchServer) Refuses(batch.Urgency) error {
	if s.db.life.Err() != nil {
		return store.ErrClosed
	}
	return nil
}

// Late implements batch.Server: a request is queued for the timeout at most.
func (s batchServer) Late(why error, sent bool) error {
	return s.db.explainLate(why, time.Now().Add(-s.db.config.Timeout), sent)
}

func (batchServer) Missed() {}

func (s batchServer) Batched(requests int) {
	s.db.telemetry.Batch(context.Background(), requests)
}
