package workload

import (
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
)

// tokens takes tokens of a key.
func (a *actor) tokens() {
	ctx, cancel := a.patience()
	defer cancel()
	key, n := a.key(0), int64(1+a.rand.IntN(3))
	event := history.Event{Step: history.Denied, Subject: a.Name, Key: key, N: n, Until: history.Now()}
	if a.chance(30) {
		if err := a.limiter.WaitN(ctx, key, n); err == nil {
			event.Step = history.Allowed
		}
	} else if d, err := a.limiter.AllowN(ctx, key, n); err == nil && d.Allowed {
		event.Step = history.Allowed
	}
	a.history.Write(event)
	if event.Step == history.Denied {
		a.pause(20 * time.Millisecond)
	}
}
