package delay

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/taskid"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// State is a task, for operators and tests: it may have changed when the caller reads it.
type State struct {
	Key string
	// ID identifies the task: it is [Task.ID].
	ID    string
	State string // waiting, running or buried
	// Attempt is the number of attempts that have been counted.
	Attempt int
	Fence   int64         // of the last attempt, or zero
	Due     time.Duration // if it waits, until it is due; below zero if no worker has taken it since
	Lease   time.Duration // if it runs, the rest of its lease
	Holder  string        // if it runs, of its worker ([WithHolder])
	Follows bool          // another task follows it
	Reason  string        // if it is buried
	Age     time.Duration // since it was buried
	Expires time.Duration // until the buried task is removed
	Size    int           // of the payload, in bytes; 24 more if its put was under a sampled span

	ref store.TaskRef
}

var stateNames = map[store.TaskState]string{
	store.TaskWaiting: "waiting", store.TaskTaken: "running", store.TaskKeptBuried: "buried",
}

func (q *Queue) stateOf(r store.TaskRecord) State {
	return State{
		Key: r.Key, ID: taskid.Of(q.name, r.Key, r.ID), State: stateNames[r.State],
		Attempt: r.Attempt, Fence: r.Fence, Due: r.Due, Lease: r.Lease,
		Holder: r.Holder, Follows: r.Follows, Reason: r.Reason, Age: r.Age, Expires: r.Expires, Size: max(r.Bytes-1, 0),
		ref: store.TaskRef{Queue: q.name, Key: r.Key, ID: r.ID},
	}
}

// Inspect returns the task of a key; the buried one if there is no other. It returns [ErrNoTask] if
// there is none, [ErrInvalidKey], the context's error, or one that matches store.ErrUnavailable.
func (q *Queue) Inspect(ctx context.Context, key string) (State, error) {
	if err := naming.CheckKey(key); err != nil {
		return State{}, fmt.Errorf("%w: %w", ErrInvalidKey, err)
	}
	able, err := store.As[store.TaskKeeper](q.store)
	if err != nil {
		return State{}, err
	}
	record, found, err := able.InspectTask(ctx, q.name, key)
	if err == nil && !found {
		err = ErrNoTask
	}
	if err != nil {
		return State{}, err
	}
	return q.stateOf(record), nil
}

// List yields the tasks that wait or run, in no order. A task that changes during the listing may
// be missing, or be seen twice. An error ends it.
func (q *Queue) List(ctx context.Context) iter.Seq2[State, error] { return q.list(ctx, false) }

// Buried yields the buried tasks, as List does the others.
func (q *Queue) Buried(ctx context.Context) iter.Seq2[State, error] { return q.list(ctx, true) }

func (q *Queue) list(ctx context.Context, buried bool) iter.Seq2[State, error] {
	return func(yield func(State, error) bool) {
		able, err := store.As[store.TaskKeeper](q.store)
		if err != nil {
			yield(State{}, err)
			return
		}
		for record, err := range able.ListTasks(ctx, q.name, buried) {
			if !yield(q.stateOf(record), err) || err != nil {
				return
			}
		}
	}
}

// Revive makes the buried task of a key due, with no attempts counted. It reports false, and changes
// nothing, if the key has a task that waits or runs. Errors are those of Inspect.
func (q *Queue) Revive(ctx context.Context, key string) (bool, error) {
	state, err := q.Inspect(ctx, key)
	if err != nil {
		return false, err
	}
	if state.State != "buried" {
		return false, nil
	}
	able, err := store.As[store.TaskKeeper](q.store)
	if err != nil {
		return false, err
	}
	return again(ctx, func() (bool, error) { return able.ReviveTask(ctx, state.ref) })
}

// Counts are the numbers of a queue.
type Counts struct {
	Waiting, Running, Buried int
	// Oldest is for how long the first waiting task has been due: workers are late by that, or
	// there are none. It is zero if none is due.
	Oldest time.Duration
}

// Count returns the numbers of the queue, by one call of the store. Export them from one process.
func (q *Queue) Count(ctx context.Context) (Counts, error) {
	able, err := store.As[store.TaskKeeper](q.store)
	if err != nil {
		return Counts{}, err
	}
	counts, err := able.CountTasks(ctx, q.name)
	return Counts(counts), err
}
