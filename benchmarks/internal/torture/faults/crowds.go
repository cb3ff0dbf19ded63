package faults

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// crowds are faults of a process's own callers.
func crowds() []Fault {
	return []Fault{{
		Name:    "hot scope",
		About:   "150 more callers in a process, each with a scope and keys of its own, and then all with one scope, lock and bucket",
		Replies: true, stores: whole, Inject: hotScope,
	}}
}

func hotScope(ctx context.Context, t *Target) (hit Hit, err error) {
	const callers = 150
	w, _ := t.worker()
	hit = Hit{Target: w.Name, Count: callers}
	err = w.Order(workload.Order{Crowd: callers})
	wait(ctx, settled) // connections are opened, and statements prepared
	hit.From = history.Now()
	wait(ctx, observed)
	err = errors.Join(err, w.Order(workload.Order{Crowd: callers, Hot: true}))
	wait(ctx, settled)
	hit.Turned = history.Now()
	wait(ctx, observed)
	return hit, errors.Join(err, w.Order(workload.Order{}))
}

const (
	settled  = 500 * time.Millisecond
	observed = 1500 * time.Millisecond
)
