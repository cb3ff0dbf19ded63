package election_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// Lead while this process is the leader, again and again, until the program ends.
func ExampleElection_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store := memstore.New() // or redisstore.New, for several processes
	defer store.Close()
	leaders, err := lock.New(store, "leaders", lock.WithTTL(10*time.Second))
	if err != nil {
		panic(err)
	}
	e, err := election.New(leaders, "indexer")
	if err != nil {
		panic(err)
	}
	var index fence.Gate // beside the index; packages redisfence and sqlfence are for databases
	err = e.Run(ctx, func(ctx context.Context, term *election.Term) error {
		for document := 1; ctx.Err() == nil; document++ {
			err := index.Do(term.Fence(), func() error { // refuses the write of a paused leader
				fmt.Println("document", document)
				return nil
			})
			if err != nil {
				return err
			}
			if document == 2 {
				stop() // as by a signal
			}
		}
		return nil
	})
	fmt.Println("the program ends:", errors.Is(err, context.Canceled))
	// Output:
	// document 1
	// document 2
	// the program ends: true
}

// See who leads, in any process.
func ExampleElection_Observe() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	leaders, err := lock.New(store, "leaders", lock.WithHolder("web-1"), lock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	e, err := election.New(leaders, "indexer")
	if err != nil {
		panic(err)
	}
	var term *election.Term
	for leader, err := range e.Observe(ctx) {
		switch {
		case err != nil:
			fmt.Println("the store is unavailable:", err)
			continue
		case leader.Fence != 0:
			fmt.Println(leader.Label, "leads:", e.IsLeader(ctx) == nil)
			_ = term.Resign(ctx)
			continue
		case term != nil:
			fmt.Println("nobody leads any more")
			return
		}
		fmt.Println("nobody leads")
		if term, err = e.Campaign(ctx); err != nil {
			panic(err)
		}
	}
	// Output:
	// nobody leads
	// web-1 leads: true
	// nobody leads any more
}
