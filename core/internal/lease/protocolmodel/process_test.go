package protocolmodel

// world is a state of a model.
type world struct {
	*model
	*state
}

func (w world) isUp(p uint8) bool { return !w.processes[p].down && !w.processes[p].paused }

// start begins a request.
func (w world) start(id uint8) {
	w.requests[id].phase = waiting
	w.requests[id].ask = true
	if p := &w.processes[w.specs[id].process]; p.beat == 0 {
		p.beat = beat
	}
}

// end ends a request: it releases the hold, or withdraws. It is the caller's unlock or giving up,
// and the process's own reaction to a hold that has run out or is lost.
func (w world) end(id uint8) {
	r := &w.requests[id]
	*r = request{phase: over, fence: r.fence, open: r.open, ending: due}
}

// settle lets the processes do what is due. It is called after every action, so that time passes
// only while nothing is due.
func (w world) settle() {
	for p := range w.subscribed {
		if w.isUp(uint8(p)) {
			w.settleProcess(uint8(p))
		}
	}
}

func (w world) settleProcess(p uint8) {
	var list uint8
	for _, id := range w.requestsOf[p] {
		r := &w.requests[id]
		if r.phase == holding && r.left <= 0 {
			w.end(id)
		}
		switch {
		case r.phase == waiting:
			list |= 1 << id
			if r.ask {
				r.ask = false
				r.open++
				w.send(message{kind: acquire, process: p, id: id, number: r.place})
			}
		case r.phase == holding && r.renew <= 0:
			r.renew = 1 // again, unless the reply says otherwise
			w.send(message{kind: renew, process: p, id: id, fence: r.fence})
		case r.phase == over && r.ending == due:
			r.ending = sent
			w.send(message{kind: release, process: p, id: id, fence: r.fence, tomb: r.open > 0, final: true})
		}
	}
	proc := &w.processes[p]
	switch {
	case list == 0:
		proc.beat = 0
	case proc.beat <= 0:
		proc.beat = beat
		w.send(message{kind: heartbeat, process: p, list: list})
	}
}

// failed tells the sender that it will have no reply: the command may have been executed, or not, or
// may be later.
func (w world) failed(cmd message) {
	r := &w.requests[cmd.id]
	switch {
	case w.processes[cmd.process].down:
	case cmd.kind == acquire && r.phase == waiting:
		r.ask = true
	case cmd.kind == release && cmd.final && r.phase == over:
		r.ending = due
	}
}

// released tells the sender of a release that it has been executed.
func (w world) released(cmd message) {
	if r := &w.requests[cmd.id]; cmd.final && r.phase == over {
		*r = request{phase: over, closed: r.closed, exempt: r.exempt, ghost: r.ghost}
	}
}

// receive takes in what the store has sent.
func (w world) receive(msg message) {
	r := &w.requests[msg.id]
	switch msg.kind {
	case granted, queued, tombstoned:
		if r.open > 0 {
			r.open--
		}
	}
	switch msg.kind {
	case push:
		if r.phase != holding || r.fence != msg.fence {
			w.told(msg)
		}
	case granted, held:
		w.told(msg)
	case queued:
		if r.phase == waiting {
			r.place = msg.number
		}
	case tombstoned:
		if r.phase == waiting {
			w.broken = waiterRefused
		}
	case missing:
		if r.phase == waiting {
			r.ask = true
		}
	case unknown:
		if r.phase == over && r.ending == none {
			w.send(message{kind: release, process: msg.process, id: msg.id, tomb: true, final: true})
		}
	case renewed:
		if r.phase == holding && r.fence == msg.fence {
			r.renew = renewal
			w.told(msg)
		}
	case refused:
		if r.phase == holding && r.fence == msg.fence {
			w.end(msg.id)
		}
	}
}

// told takes in that a request holds.
func (w world) told(msg message) {
	r := &w.requests[msg.id]
	left := w.believed(&msg)
	switch {
	case r.phase == waiting && (left*4 < grant || w.specs[msg.id].confirmed && (msg.kind == push || msg.untaken)):
		r.place = max(r.place, msg.number)
		r.ask = true
	case r.phase == waiting:
		r.phase = holding
		r.fence = msg.fence
		r.left, r.asked, r.lost = left, msg.age, msg.lost
		r.ask = false
		if msg.kind != push && !msg.untaken {
			r.renew = renewal
		}
		w.newest = max(w.newest, msg.fence)
	case r.phase == holding && r.fence != msg.fence:
		w.send(message{kind: release, process: msg.process, id: msg.id, fence: msg.fence})
	case r.phase == holding && msg.age <= r.asked:
		r.left, r.asked, r.lost = left, msg.age, msg.lost
	}
}

// believed returns for how long a process may use a hold of which it learns by this message: counted
// from the sending of the request that the message answers; that of a push is the token.
func (w world) believed(msg *message) ticks {
	left := msg.left - margin
	if w.change == noMargin {
		left = msg.left
	}
	if msg.kind == push && w.change == countFromReceipt {
		return left
	}
	return max(left-msg.age, 0)
}
