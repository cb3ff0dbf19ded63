package workload

import (
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
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

// blocks takes a token of a key, one of those that the process has taken in advance where it can.
func (a *actor) blocks() {
	ctx, cancel := a.patience()
	defer cancel()
	event := history.Event{Step: history.Denied, Subject: a.Name, Key: a.key(0), N: 1, Until: history.Now()}
	if d, err := a.limiter.Allow(ctx, event.Key); err == nil && d.Allowed {
		event.Step = history.Allowed
	}
	a.history.Write(event)
}

// reserve reserves tokens of a key and uses as many or more, or holds the key now and then. It never uses
// less: what a settlement gives back, it gives back twice where the network runs a script twice, and to an
// empty bucket where the server has lost the reservation. Neither is a promise that this could check.
func (a *actor) reserve() {
	ctx, cancel := a.patience()
	defer cancel()
	key, called := a.key(0), history.Now()
	if a.chance(2) {
		d := 50*time.Millisecond + a.upTo(200*time.Millisecond)
		if err := a.limiter.Hold(ctx, key, d); err == nil {
			a.history.Write(history.Event{Step: history.Holding, Subject: a.Name, Key: key, N: int64(d), Until: called})
		}
		return
	}
	const estimate = 2
	event := history.Event{Step: history.Denied, Subject: a.Name, Key: key, N: estimate, Until: called}
	r, err := a.limiter.Reserve(ctx, key, tokenbucket.Cost{unit: estimate})
	if err == nil && r.Allowed {
		event.Step = history.Allowed
		a.pause(10 * time.Millisecond)
		used := int64(estimate + a.rand.IntN(5))
		if r.Use(unit, used) == nil && r.Settle(ctx) == nil { // else perhaps only the estimate is charged
			event.N = used
		}
	}
	a.history.Write(event)
	if event.Step == history.Denied {
		a.pause(20 * time.Millisecond)
	}
}

// unit is that of the only limit of a subject.
const unit = "a"
