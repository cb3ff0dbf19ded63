package background_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
)

// slow is a queue whose calls block until next.
type slow struct {
	*background.BatchQueue[int]
	sizes []int
	tasks []int
	next  chan struct{}
}

func newSlow() *slow {
	s := &slow{next: make(chan struct{})}
	s.BatchQueue = background.NewBatchQueue(func(tasks []int) {
		s.sizes = append(s.sizes, len(tasks))
		s.tasks = append(s.tasks, tasks...)
		<-s.next
	})
	return s
}

func (s *slow) add(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		if !s.Add(i) {
			t.Fatalf("task %d was refused", i)
		}
	}
	synctest.Wait()
}

func TestLoneTaskRunsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		for range 3 {
			s.add(t, 1)
			s.next <- struct{}{}
			ok(t, s.Wait(t.Context()))
		}
		if want := []int{1, 1, 1}; !slices.Equal(s.sizes, want) {
			t.Errorf("batches of %v, want %v", s.sizes, want)
		}
	})
}

func TestTasksDuringACallAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		s.add(t, 1)
		s.add(t, 250)
		close(s.next)
		ok(t, s.Wait(t.Context()))
		if want := []int{1, 100, 100, 50}; !slices.Equal(s.sizes, want) {
			t.Errorf("batches of %v, want %v", s.sizes, want)
		}
		if !slices.IsSorted(s.tasks[1:]) {
			t.Error("out of order")
		}
	})
}

func TestBatchQueueWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		if err := s.Wait(t.Context()); err != nil {
			t.Errorf("of an empty queue: %v", err)
		}
		s.add(t, 1)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Wait: %v", err)
		}
		close(s.next)
	})
}

func TestBatchQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlow()
		s.add(t, 1)
		s.add(t, 1<<16)
		if s.Add(0) {
			t.Error("one more was accepted")
		}
		close(s.next)
		if err := s.Wait(t.Context()); err != nil || len(s.tasks) != 1<<16+1 {
			t.Errorf("%d tasks done, %v", len(s.tasks), err)
		}
	})
}
