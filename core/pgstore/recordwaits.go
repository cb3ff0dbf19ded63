package pgstore

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// maxInboxes is the largest number of processes that get a push at the end of an attempt. Others
// check.
const maxInboxes = 64

// endedPush is the push for the end of the attempt in flight.
func endedPush(ref *store.OperationRef) string { return "ended " + ref.ID }

// tell delivers a push to the inboxes that wait for it. A process that does not get it checks.
func (s *Store) tell(inboxes []string, push string) {
	if len(inboxes) == 0 {
		return
	}
	pushes := make([]string, len(inboxes))
	for i, inbox := range inboxes {
		pushes[i] = inbox + " " + push
	}
	s.db.Deliver(pushes)
}

// AwaitOperation implements store.AwaitedRecords. It waits for a push, and checks every three seconds, and
// when the attempt's lease ends.
func (s *Store) AwaitOperation(ctx context.Context, ref store.OperationRef) error {
	call := statement.Call{Operation: opBeginOperation, Writes: true, Flow: flowOf(&ref)}
	return s.waiting.AwaitPush(ctx, endedPush(&ref), func(pushed bool) (bool, time.Duration, error) {
		if pushed { // another attempt may have begun since
			return true, 0, nil
		}
		left, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (left int64, err error) {
			err = c.QueryRow(ctx, s.db.Text(`SELECT lk.await_operation_1($1, $2, $3)`),
				ref.ID, s.db.Inbox(), maxInboxes).Scan(&left)
			return left, err
		})
		return left <= 0, micros(left), err
	})
}
