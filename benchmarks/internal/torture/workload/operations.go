package workload

import (
	"context"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/core/guard"
)

// operation returns the key of an operation: mostly the newest, for which others ask as well, and now
// and then an older one.
func (a *actor) operation() string {
	const every = 250 * time.Millisecond
	number := int(history.Now() / int64(every))
	if a.chance(30) {
		number -= a.rand.IntN(100)
	}
	return a.key(number)
}

// operations requests an operation.
func (a *actor) operations() {
	ctx, cancel := a.patience()
	defer cancel()
	key := a.operation()
	add := a.called(key, Exclusive, 0, false)
	attempt, result, err := a.guard.Begin(ctx, guard.Operation{Key: key})
	switch {
	case err != nil:
		a.failed(add, err)
		a.pause(50 * time.Millisecond)
		return
	case result != nil:
		add(history.Event{Step: history.Replayed, Text: string(result.Data)})
		a.pause(50 * time.Millisecond)
		return
	}
	h := held{add, int64(attempt.Number())}
	granted(attempt, h)
	a.attempt(ctx, attempt, h)
}

// attempt runs an operation. Like most code it does not look whether its attempt is still valid.
func (a *actor) attempt(ctx context.Context, attempt *guard.Attempt, h held) {
	settle := func(step history.Step, text string, f func(context.Context) error) {
		at, _, ok := valid(attempt)
		e := history.Event{At: at, Step: step, Text: text}
		switch {
		case ok:
			e.Until = at
		case step == history.Releasing:
			e.Step = history.Ended
		}
		h.add(e)
		if err := f(ctx); err != nil {
			h.add(history.Event{Step: history.Failed, Text: a.class(err)})
		} else if step == history.Completing {
			h.add(history.Event{Step: history.Completed, Text: text})
		}
	}
	if a.chance(20) {
		clean := attempt.MarkClean(ctx) == nil
		a.work(attempt, h)
		if clean && a.chance(30) {
			settle(history.Releasing, "", attempt.Abandon)
			return
		}
		if err := attempt.MarkDirty(ctx); err != nil { // no effect without it
			settle(history.Releasing, "", attempt.Abandon)
			return
		}
	} else {
		a.work(attempt, h)
	}
	h.add(history.Event{Step: history.Effect})
	a.work(attempt, h)
	if a.chance(3) {
		settle(history.Releasing, "", attempt.CompleteUnknown)
		return
	}
	text := a.job.Name + "." + strconv.FormatInt(history.Now(), 36)
	settle(history.Completing, text, func(ctx context.Context) error {
		return attempt.Complete(ctx, guard.Result{Status: 200, Data: []byte(text)})
	})
}
