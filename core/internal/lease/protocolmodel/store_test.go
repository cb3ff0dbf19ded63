package protocolmodel

// step is one atomic step of the store, the execution of one command.
type step struct {
	world
	pushes  []message
	replies []message
}

// execute runs a command. Every step hears the process first if the command carries a token, ends
// what has expired, does what the command says, grants to the waiters that can be granted, and at
// the end writes the replies and the pushes.
func (t *step) execute(cmd message) {
	if cmd.kind == acquire || cmd.kind == heartbeat {
		t.hear(cmd)
	}
	t.expire()
	switch cmd.kind {
	case acquire:
		t.acquire(cmd)
	case renew:
		t.renew(cmd)
	case release:
		t.release(cmd)
	case heartbeat:
		t.heartbeat(cmd)
	}
}

// hear keeps the token, and that the process is alive.
func (t *step) hear(cmd message) {
	e := &t.entries[cmd.process]
	if !e.known || cmd.age < e.token {
		e.token = cmd.age
	}
	e.known = true
	e.alive = alive
	e.suspect = false
	e.subscribed = t.subscribed[cmd.process] && !t.processes[cmd.process].down
	for i := range t.places {
		if t.places[i].untaken {
			t.places[i].seen |= 1 << cmd.process
		}
	}
}

func (t *step) expire() {
	for i := range t.places {
		p := &t.places[i]
		if p.phase != holding || p.left > 0 {
			continue
		}
		if p.untaken {
			t.entries[t.specs[i].process].doubled = true
			for q := range t.entries {
				if t.entries[q].known && p.seen>>q&1 == 0 {
					t.entries[q].suspect = true
				}
			}
		}
		p.clear()
	}
}

// clear ends a place or a hold. The tombstone stays.
func (p *place) clear() { *p = place{tombstone: p.tombstone} }

// acquire queues a request, or finds it queued or held, and answers what it is at the end.
func (t *step) acquire(cmd message) {
	p := &t.places[cmd.id]
	if p.tombstone {
		t.reply(cmd, message{kind: tombstoned})
		t.grant(0)
		return
	}
	if p.phase == unborn {
		t.enqueue(cmd.id, cmd.number)
	}
	t.grant(1 << cmd.id)
	if p.phase == holding {
		t.takeUp(p, cmd.process) // by this reply, or by a push before it
		t.reply(cmd, message{kind: granted, fence: p.fence, left: p.left})
		return
	}
	t.reply(cmd, message{kind: queued, number: p.number})
}

func (t *step) enqueue(id, number uint8) {
	if number == 0 {
		number = following(t.numbers)
	}
	t.places[id].phase = waiting
	t.places[id].number = number
}

// takeUp gives a hold its whole time.
func (t *step) takeUp(p *place, process uint8) {
	p.left, p.span, p.untaken, p.seen = ttl, ttl, false, 0
	t.entries[process].doubled = false
}

func (t *step) renew(cmd message) {
	p := &t.places[cmd.id]
	if !t.matches(p, cmd.fence) {
		t.grant(0)
		t.reply(cmd, message{kind: refused, fence: cmd.fence})
		return
	}
	t.takeUp(p, cmd.process)
	t.grant(0)
	t.reply(cmd, message{kind: renewed, fence: cmd.fence, left: p.left})
}

// matches reports whether a place is the hold that has this fence.
func (t *step) matches(p *place, fence uint8) bool {
	return p.phase == holding && (p.fence == fence || t.change == holdsByIDAlone)
}

// release ends a hold, or withdraws a request.
func (t *step) release(cmd message) {
	p := &t.places[cmd.id]
	if cmd.final && t.change != finalReleaseByFence || cmd.fence == 0 || t.matches(p, cmd.fence) {
		p.clear()
	}
	if cmd.tomb && t.change != noTombstones {
		p.tombstone = true
	}
	if cmd.final {
		t.requests[cmd.id].closed = true
	}
	t.grant(0)
}

// heartbeat reports what the process must know: which requests hold, which places are missing, and
// which the process does not know. It creates nothing.
func (t *step) heartbeat(cmd message) {
	if t.change == heartbeatsCreate {
		for _, id := range t.requestsOf[cmd.process] {
			if cmd.list>>id&1 == 1 && t.places[id].phase == unborn && !t.places[id].tombstone {
				t.enqueue(id, 0)
			}
		}
	}
	if t.change == heartbeatsRemove {
		for _, id := range t.requestsOf[cmd.process] {
			if p := &t.places[id]; cmd.list>>id&1 == 0 && (p.phase == waiting || p.untaken) {
				p.clear()
			}
		}
	}
	t.grant(cmd.list)
	for _, id := range t.requestsOf[cmd.process] {
		p := &t.places[id]
		listed := cmd.list>>id&1 == 1
		answer := message{id: id, fence: p.fence, left: p.left, untaken: p.untaken}
		switch {
		case listed && p.phase == holding:
			answer.kind = held
		case listed && p.phase == unborn:
			answer.kind = missing
		case !listed && (p.phase == waiting || p.untaken):
			answer.kind = unknown
		default:
			continue
		}
		t.reply(cmd, answer)
	}
}

// grant makes holders of the waiters that can be granted. Those in told learn it by the reply, the
// others by a push. When the turn of a process comes that is not alive, all its places go.
func (t *step) grant(told uint8) {
	for {
		id, ok := t.nextWaiter()
		if !ok {
			return
		}
		p := &t.places[id]
		owner := t.specs[id].process
		e := &t.entries[owner]
		if !t.isAlive(owner) {
			for _, other := range t.requestsOf[owner] {
				if t.places[other].phase == waiting {
					t.places[other].clear()
				}
			}
			continue
		}
		p.phase = holding
		p.fence = following(t.fences)
		p.left = grant
		if e.doubled {
			p.left = min(2*grant, ttl)
		}
		p.span, p.untaken, p.seen = p.left, true, 0
		if told>>id&1 == 0 {
			t.pushes = append(t.pushes, message{kind: push, process: owner, id: id, fence: p.fence, number: p.number, age: e.token, left: grant})
		}
	}
}

// nextWaiter returns a waiter that can be granted: its weight and those of all that hold or stand
// before it fit into its capacity less its reserve, and no waiter before it has the same reserve.
func (t *step) nextWaiter() (next uint8, ok bool) {
	inUse := 0
	for i, r := range t.specs {
		if t.places[i].phase == holding {
			inUse += r.weight
		}
	}
	for i, r := range t.specs {
		if t.places[i].phase != waiting {
			continue
		}
		sum, first := inUse+r.weight, true
		for j, other := range t.specs {
			if t.places[j].phase == waiting && t.before(j, i) {
				sum += other.weight
				first = first && other.reserve != r.reserve
			}
		}
		if first && sum <= r.capacity-r.reserve && (!ok || t.before(i, int(next))) {
			next, ok = uint8(i), true
		}
	}
	return next, ok
}

func (t *step) before(i, j int) bool {
	a, b := t.specs[i].reserve, t.specs[j].reserve
	return a < b || a == b && t.places[i].number < t.places[j].number
}

func (t *step) isAlive(p uint8) bool {
	e := &t.entries[p]
	if !e.known || e.suspect {
		return false
	}
	if t.subscribed[p] {
		return e.subscribed
	}
	return e.alive > 0
}

func (t *step) reply(cmd, answer message) {
	if cmd.orphan {
		return
	}
	answer.process = cmd.process
	if cmd.kind != heartbeat {
		answer.id = cmd.id
	}
	answer.age = cmd.age
	t.replies = append(t.replies, answer)
}
