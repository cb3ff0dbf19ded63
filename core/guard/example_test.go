package guard_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// Run a job once for each tick among all processes, which have the same timetable. The tick is part
// of the key: the first process runs the job, and the others get its result or ErrInFlight. A lock
// does not suffice, since it is free again after the first run.
func ExampleDo_jobOncePerTick() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New, for several processes
	defer store.Close()

	runs := make(chan string, 10)
	process := func(tick time.Time) error {
		jobs, err := guard.New(store, "jobs")
		if err != nil {
			return err
		}
		op := guard.Operation{Key: "invoices " + tick.Format("2006-01-02")}
		_, _, err = guard.Do(ctx, jobs, op, func(context.Context) (int, error) {
			runs <- "sends the invoices of " + tick.Format(time.DateOnly)
			return 0, nil
		})
		if errors.Is(err, guard.ErrInFlight) { // in another process
			return nil
		}
		return err
	}

	monday := time.Date(2026, time.June, 1, 0, 0, 0, 0, time.UTC)
	for _, tick := range []time.Time{monday, monday.AddDate(0, 0, 1)} {
		var processes sync.WaitGroup
		for range 4 {
			processes.Go(func() {
				if err := process(tick); err != nil {
					fmt.Println(err)
				}
			})
		}
		processes.Wait()
	}
	close(runs)
	for run := range runs {
		fmt.Println(run)
	}
	// Output:
	// sends the invoices of 2026-06-01
	// sends the invoices of 2026-06-02
}
