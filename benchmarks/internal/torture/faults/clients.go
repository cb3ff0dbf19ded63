package faults

import (
	"context"
	"errors"
	"slices"
	"time"
)

var anywhere = slices.Concat(whole, onCoordination, []string{"memory"})

// clients are faults of processes.
func clients() []Fault {
	return []Fault{
		{
			Name: "nothing", About: "for comparison", stores: anywhere,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				t.last(ctx, time.Second, 2*time.Second)
				return Hit{}, nil
			},
		},
		{
			Name: "kill", About: "a process is killed, and another one started", stores: anywhere,
			Inject: func(_ context.Context, t *Target) (Hit, error) {
				w, i := t.worker()
				return Hit{Target: w.Name, Count: 1}, t.Fleet.Kill(i)
			},
		},
		{
			Name: "pause", About: "a process is stopped, for less than a lease or for more", stores: anywhere,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				w, _ := t.worker()
				if err := w.Pause(); err != nil {
					return Hit{}, err
				}
				t.last(ctx, 50*time.Millisecond, 3*time.Second)
				return Hit{Target: w.Name, Count: 1}, w.Resume()
			},
		},
		{
			Name: "pause all", About: "all processes are stopped at once, and resumed one after the other", stores: anywhere,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				var errs []error
				for i := range t.Fleet.Size() {
					errs = append(errs, t.Fleet.Worker(i).Pause())
				}
				t.last(ctx, 50*time.Millisecond, 2*time.Second)
				for i := range t.Fleet.Size() {
					errs = append(errs, t.Fleet.Worker(i).Resume())
					t.last(ctx, 0, 100*time.Millisecond)
				}
				return Hit{Target: "all", Count: int64(t.Fleet.Size())}, errors.Join(errs...)
			},
		},
	}
}
