package protocolmodel

// violation is what must not happen.
type violation uint8

const (
	noViolation violation = iota
	overCapacity
	oldFence
	revived
	ghostHold
	notServed
	waiterRefused
)

var violationNames = [...]string{"none", "valid holders beyond the capacity", "a valid hold has an older fence than one before it",
	"a request holds after its release", "a request that is over is held for longer than G", "a live waiter is not served in time",
	"a tombstone refuses a request that waits"}

func (v violation) String() string { return violationNames[v] }

// idleAfterTick returns for how long a process that could hold has waited although there is no
// holder. A hold that has been taken up by a process that is down counts: it takes its TTL.
func (w world) idleAfterTick() ticks {
	someWait := false
	for id := range w.specs {
		r, p := &w.requests[id], &w.places[id]
		up := w.isUp(w.specs[id].process)
		someWait = someWait || r.phase == waiting && up
		stranded := p.phase == holding && p.left > 0 && !p.untaken && (!up || r.exempt)
		if r.phase == holding && r.left > 0 || stranded {
			return 0
		}
	}
	if !someWait {
		return 0
	}
	return w.idle + 1
}

// judge notes the first violation.
func (w world) judge() {
	if w.broken == noViolation {
		w.broken = w.check()
	}
}

// check returns which invariant does not hold.
func (w world) check() violation {
	sum, largest, stale := 0, 0, false
	for id, spec := range w.specs {
		r, p := &w.requests[id], &w.places[id]
		if r.phase == holding && r.left > 0 && !r.lost {
			sum += spec.weight
			largest = max(largest, spec.capacity)
			stale = stale || w.exclusive && r.fence < w.newest
		}
		if r.closed && !r.exempt && p.phase == holding {
			return revived
		}
		if r.ghost > grant {
			return ghostHold
		}
	}
	switch {
	case sum > largest:
		return overCapacity
	case stale:
		return oldFence
	case w.idle > w.bound():
		return notServed
	}
	return noViolation
}

// bound is within how many ticks a live waiter is served when no more faults happen.
func (w world) bound() ticks {
	for i := range w.entries {
		if w.entries[i].doubled {
			return min(2*grant, ttl) + beat
		}
	}
	return grant + beat
}
