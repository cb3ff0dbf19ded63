package delay_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// lateReply is a store whose first put is carried out, and whose reply comes after a while as an
// error.
type lateReply struct {
	*memstore.Store
	late bool
}

func (s *lateReply) PutTask(ctx context.Context, req store.PutTaskRequest) (store.PutTaskReply, error) {
	reply, err := s.Store.PutTask(ctx, req)
	if !s.late {
		s.late = true
		time.Sleep(time.Second)
		return reply, store.ErrUnconfirmed
	}
	return reply, err
}

// The reply to a put is late, and its task has run before the put is repeated. The task runs again,
// with the same ID, unless it is cancelled: then the cancel does not say that it was prevented.
func TestARepeatedPutMayHaveRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := &lateReply{Store: memstore.New()}
		defer func() { _ = st.Close() }()
		q, err := delay.New(st, "orders")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = q.Close() }()
		ctx := t.Context()
		ran := make(chan string, 2)
		running, stop := context.WithTimeout(ctx, time.Second/2)
		defer stop()
		go func() {
			_ = q.Run(running, 1, func(_ context.Context, task *delay.Task) error {
				ran <- task.ID()
				return nil
			})
		}()
		if _, err := q.Put(ctx, "order", nil, 0); err != nil {
			t.Fatal(err)
		}
		if len(ran) != 1 {
			t.Fatalf("the task has run %d times", len(ran))
		}
		if cancelled, err := q.Cancel(ctx, "order"); err != nil || cancelled != delay.Ended {
			t.Errorf("the cancel of a task that has run is %q, %v", cancelled, err)
		}
	})
}
