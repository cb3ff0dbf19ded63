package history

import (
	"fmt"
	"strings"
	"time"
)

// CheckLock returns the errors in a history of one lock, whose events are in the order of time: leases
// that overlap, except shared ones, fences of exclusive ones that do not grow, and, once a process
// was killed, too long gaps between a lease's end and the next grant. Before, the processes begin.
func CheckLock(events []Event, shared func(hold string) bool, longest time.Duration) []string {
	var (
		wrong []string
		live  = map[string]bool{}
		dead  = map[string]bool{} // killed processes, whose late events do not count
		last  int64
		free  time.Time
	)
	for _, e := range events {
		if dead[e.Process()] {
			continue
		}
		switch e.What {
		case Granted:
			for other := range live {
				if !shared(e.Hold) || !shared(other) {
					wrong = append(wrong, fmt.Sprintf("%s was granted while %s was valid", e.Hold, other))
				}
			}
			if !shared(e.Hold) {
				if e.N <= last {
					wrong = append(wrong, fmt.Sprintf("fence %d after %d", e.N, last))
				}
				last = e.N
			}
			if gap := e.At.Sub(free); len(dead) > 0 && !free.IsZero() && gap > longest {
				wrong = append(wrong, fmt.Sprintf("no process had the lock for %v", gap))
			}
			live[e.Hold] = true
		case Ended:
			delete(live, e.Hold)
			free = e.At
		case Killed:
			dead[e.Hold] = true
			for lease := range live {
				if strings.HasPrefix(lease, e.Hold+"/") {
					delete(live, lease)
					free = e.At
				}
			}
		}
	}
	return wrong
}

// CheckSemaphore returns the errors in a history of one semaphore, whose events are in the order of time: more
// in use than its capacity, and permits in use at the end.
func CheckSemaphore(events []Event, capacity int64) []string {
	var (
		wrong []string
		live  = map[string]int64{}
		dead  = map[string]bool{} // killed processes, whose late events do not count
		inUse int64
	)
	end := func(hold string) {
		inUse -= live[hold]
		delete(live, hold)
	}
	for _, e := range events {
		if dead[e.Process()] {
			continue
		}
		switch e.What {
		case Granted:
			live[e.Hold] = e.N
			if inUse += e.N; inUse > capacity {
				wrong = append(wrong, fmt.Sprintf("%d of %d in use", inUse, capacity))
			}
		case Ended:
			end(e.Hold)
		case Killed:
			dead[e.Hold] = true
			for hold := range live {
				if strings.HasPrefix(hold, e.Hold+"/") {
					end(hold)
				}
			}
		}
	}
	if inUse != 0 {
		wrong = append(wrong, fmt.Sprintf("%d in use at the end", inUse))
	}
	return wrong
}
