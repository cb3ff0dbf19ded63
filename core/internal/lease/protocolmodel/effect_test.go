package protocolmodel

// do takes an action.
func (m *model) do(s *state, a action) {
	w := world{m, s}
	if a.verb >= crash && a.verb <= drift && a.verb != resume || a.fault != noFault {
		s.faults--
		s.idle = 0
	}
	switch a.verb {
	case start:
		w.start(a.index)
	case end:
		w.end(a.index)
	case deliver:
		w.deliver(s.remove(int(a.index)), a.fault)
	case crash:
		w.crash(a.index)
	case pause:
		s.processes[a.index].paused = true
	case resume:
		s.processes[a.index].paused = false
		s.idle = 0
	case flush:
		s.places = [maxRequests]place{}
		s.entries = [maxProcesses]entry{}
		w.damage()
	case stepForward:
		w.step(ttl)
		w.damage()
	case stepBack:
		w.step(-ttl)
	case drift:
		s.drifted = true
		w.step(1)
	case tick:
		w.tick()
	}
	w.settle()
	w.judge()
	for s.faults == 0 { // nothing can go wrong with messages that commute
		i, ok := w.commuting()
		if !ok {
			break
		}
		w.deliver(s.remove(int(i)), noFault)
		w.settle()
		w.judge()
	}
	s.normalize()
}

func (w world) deliver(msg message, f fault) {
	if !msg.toStore() {
		w.receive(msg)
		return
	}
	switch f {
	case requestLost:
		w.failed(msg)
		return
	case requestSlow:
		msg.late = latest
		w.send(msg)
		return
	case requestLate:
		w.failed(msg)
		msg.late, msg.orphan = latest, true
		w.send(msg)
		return
	case replyLost:
		w.failed(msg)
		msg.orphan = true
	}
	places, entries := w.places, w.entries
	t := step{world: w}
	t.execute(msg)
	if !msg.orphan && msg.kind == release {
		w.released(msg)
	}
	for _, out := range append(t.replies, t.pushes...) {
		if w.processes[out.process].down || out.kind == push && f == pushLost {
			continue
		}
		if out.kind == push && f == pushLate || out.kind != push && f == replyLate {
			out.late = latest
		}
		w.send(out)
	}
	if f == failover {
		w.places, w.entries = places, entries
		for p := range w.entries {
			w.entries[p].subscribed = false
			w.processes[p].beat = 0 // at once after a subscription
		}
		w.damage()
	}
}

func (w world) crash(p uint8) {
	w.processes[p] = process{down: true}
	w.entries[p].subscribed = false
	for _, id := range w.requestsOf[p] {
		w.requests[id] = request{phase: over}
	}
	for i := maxMessages - 1; i >= 0; i-- {
		msg := &w.messages[i]
		switch {
		case msg.kind == noMessage || msg.process != p:
		case msg.toStore():
			msg.orphan = true
		default:
			w.remove(i)
		}
	}
}

// step moves the server's clock.
func (w world) step(d ticks) {
	for i := range w.places {
		if p := &w.places[i]; p.phase == holding {
			p.left = min(max(p.left-d, 0), p.span)
		}
	}
	for i := range w.entries {
		if e := &w.entries[i]; e.known {
			e.alive = min(max(e.alive-d, 0), alive)
		}
	}
}

// damage is called when the store has lost state. It marks the holds that processes believe to have
// for longer than the store knows.
func (w world) damage() {
	isLost := func(id, fence uint8, left ticks) bool {
		p := &w.places[id]
		return p.phase != holding || p.fence != fence || p.left < left
	}
	for id := range w.specs {
		r := &w.requests[id]
		r.exempt = r.exempt || r.phase == over
		r.lost = r.lost || r.phase == holding && isLost(uint8(id), r.fence, r.left)
	}
	for i := range w.inFlight() {
		switch msg := &w.messages[i]; msg.kind {
		case push, granted, renewed, held:
			msg.lost = msg.lost || isLost(msg.id, msg.fence, w.believed(msg))
		}
	}
}

// tick lets time pass.
func (w world) tick() {
	w.idle = w.idleAfterTick()
	down := func(t *ticks) { *t = max(*t-1, 0) }
	up := func(t *ticks) { *t = min(*t+1, ttl) }
	for id := range w.specs {
		r, p := &w.requests[id], &w.places[id]
		if r.phase == holding {
			down(&r.left)
			down(&r.renew)
			up(&r.asked)
		}
		if r.phase == over && p.phase == holding && p.left > 0 && !r.exempt && w.isUp(w.specs[id].process) {
			r.ghost++
		} else {
			r.ghost = 0
		}
		down(&p.left)
	}
	for i := range w.subscribed {
		down(&w.processes[i].beat)
		if e := &w.entries[i]; e.known {
			up(&e.token)
			down(&e.alive)
		}
	}
	for i := range w.inFlight() {
		up(&w.messages[i].age)
		down(&w.messages[i].late)
	}
}
