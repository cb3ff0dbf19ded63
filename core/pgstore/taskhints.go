package pgstore

import (
	"hash/fnv"
	"io"
	"sync"
	"time"
)

// queueHints has what this process knows of queues. It may forget a queue.
//
// A search for the first task of a queue visits the index entries of all earlier ones that the
// server has not removed. While an old transaction is open, these are all that were taken since it
// began. So a take begins its search where the last one has found a task. A task that is due
// earlier is not seen then: one that a transaction has put, and committed later. So every second a
// take searches all of the queue, and AwaitTasks does always.
type queueHints [256]queueHint

const (
	searchEvery = time.Second
	countEvery  = time.Second
	// searchBack is for puts that are carried out at the same time as a take.
	searchBack = 100 * time.Millisecond
)

type queueHint struct {
	mu       sync.Mutex
	queue    string
	since    int64     // no task is due earlier
	searched time.Time // when the last search of all of the queue began
	room     int       // puts before the tasks are counted again
	count    time.Time // when they were counted
}

// of returns the hint of a queue, locked.
func (hs *queueHints) of(queue string) *queueHint {
	f := fnv.New32a()
	_, _ = io.WriteString(f, queue)
	h := &hs[f.Sum32()%uint32(len(hs))]
	h.mu.Lock()
	if h.queue != queue {
		h.queue, h.since, h.searched, h.room = queue, 0, time.Time{}, 0
	}
	return h
}

// from returns the time since when a take searches.
func (hs *queueHints) from(queue string) int64 {
	h := hs.of(queue)
	defer h.mu.Unlock()
	if time.Since(h.searched) >= searchEvery {
		h.since, h.searched = 0, time.Now()
	}
	return h.since
}

// took records when the first task was due that a take has found.
func (hs *queueHints) took(queue string, from, first int64) {
	h := hs.of(queue)
	defer h.mu.Unlock()
	if h.since == from { // no other call has found an earlier one
		h.since = max(from, first-searchBack.Microseconds())
	}
}

// saw records when the first task of a queue is due.
func (hs *queueHints) saw(queue string, first int64) {
	h := hs.of(queue)
	defer h.mu.Unlock()
	h.since = min(h.since, first)
}

// bound returns the largest number of tasks of the queue that a put has to check; 0 for none.
// Between two counts a process puts up to a thirty-second of what there was room for.
func (hs *queueHints) bound(queue string, most int) int {
	if most <= 0 {
		return 0
	}
	h := hs.of(queue)
	defer h.mu.Unlock()
	if h.room > 0 && time.Since(h.count) < countEvery {
		h.room--
		return 0
	}
	return most
}

// counted records how many tasks a queue has.
func (hs *queueHints) counted(queue string, most, tasks int) {
	h := hs.of(queue)
	defer h.mu.Unlock()
	h.room, h.count = (most-tasks)/32, time.Now()
}
