package workload

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Effects is the table of the effects of operations and tasks, which nothing but pgstore.Do and
// pgstore.Finish keeps from having two for one.
const Effects = "effects"

var errChanged = errors.New("changed its mind")

// once requests an operation whose effect is a row in a table, in the transaction of its record,
// and requests it again if it has left before the reply.
func (a *actor) once() {
	ctx, cancel := a.patience()
	defer cancel()
	if a.chance(40) { // more of them leave before the commit
		ctx, cancel = context.WithTimeout(ctx, a.upTo(300*time.Millisecond))
		defer cancel()
		a.call = ctx
	}
	op := guard.Operation{Key: a.again}
	if op.Key == "" {
		op.Key = a.operation()
	}
	a.again = ""
	if a.chance(50) {
		op.Wait = a.upTo(time.Second)
	}
	add := a.called(op.Key, Exclusive, 0, false)
	text := a.job.Name + "." + strconv.FormatInt(history.Now(), 36)
	value, replayed, err := pgstore.Do(ctx, a.guard, op, a.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, "INSERT INTO "+Effects+" (subject, operation, text) VALUES ($1, $2, $3)", a.Name, op.Key, text)
		sleep(ctx, a.upTo(10*time.Millisecond))
		if err == nil && a.chance(5) { // the row goes with the record
			err = errChanged
		}
		return text, err
	})
	var answer *pgconn.PgError
	switch {
	case errors.Is(err, errChanged):
		add(history.Event{Step: history.Failed, Text: history.Taken})
	case errors.As(err, &answer) && !errors.Is(err, store.ErrUnavailable):
		add(history.Event{Step: history.Failed, Text: "statement failed"})
	case err != nil:
		a.failed(add, err)
	case replayed:
		add(history.Event{Step: history.Replayed, Text: value})
	default:
		add(history.Event{Step: history.Completed, Text: value})
	}
	if ctx.Err() != nil { // as a client whose request had no answer in time
		a.again = op.Key
		return
	}
	a.pause(50 * time.Millisecond)
}
