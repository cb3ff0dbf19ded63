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

// Clients choose the keys, so two of them may choose the same one. The scope, the authenticated
// user, keeps them apart: without it bob would get alice's receipt. The fingerprint detects that a
// client uses a key for a second thing.
func ExampleOperation() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	orders, err := guard.New(store, "orders")
	if err != nil {
		panic(err)
	}
	buy := func(user, key, item string) {
		op := guard.Operation{Scope: user, Key: key, Fingerprint: []byte(item)}
		receipt, replayed, err := guard.Do(ctx, orders, op, func(context.Context) (string, error) {
			return item + " for " + user, nil
		})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(receipt, replayed)
	}
	buy("alice", "1", "tea")
	buy("alice", "1", "tea")
	buy("bob", "1", "tea")
	buy("alice", "1", "milk")
	// Output:
	// tea for alice false
	// tea for alice true
	// tea for bob false
	// guard: key reused for another request
}

// An operation in steps is continued where it stopped: what was recorded does not run again. The
// transfer has a key of its own, by which the bank recognises a repeat.
func ExampleStep() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	payouts, err := guard.New(store, "payouts")
	if err != nil {
		panic(err)
	}
	mailServer := errors.New("the mail server is down")
	pay := func() error {
		_, _, err := guard.Do(ctx, payouts, guard.Operation{Key: "2026-11/alice"}, func(ctx context.Context) (string, error) {
			attempt, _ := guard.FromContext(ctx)
			transfer, err := guard.Step(ctx, attempt, "transfer", func(context.Context) (string, error) {
				fmt.Println("transfers, with a key:", attempt.DownstreamKey("bank", "transfer") != "")
				return "transfer 7", nil
			})
			if err != nil {
				return "", err
			}
			return guard.Step(ctx, attempt, "mail", func(context.Context) (string, error) {
				if mailServer != nil {
					return "", mailServer
				}
				fmt.Println("mails:", transfer)
				return transfer, nil
			})
		})
		return err
	}
	fmt.Println(pay())
	mailServer = nil
	fmt.Println(pay())
	// Output:
	// transfers, with a key: true
	// the mail server is down
	// mails: transfer 7
	// <nil>
}
