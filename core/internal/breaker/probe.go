package breaker

import "time"

// Miss records that a call ended without a reply: its caller's context ended, or it got no
// connection in time, as in a burst. That is no evidence about the server. But after several in a
// row without a reply to any other call, the server is probed.
func (b *Breaker) Miss() {
	if b.missed.Add(1) < TripAfter || !b.probingMisses.CompareAndSwap(false, true) {
		return
	}
	started := b.config.Start(func() {
		defer b.probingMisses.Store(false)
		call, ok := b.admit()
		if !ok {
			return
		}
		result, ended := b.askOnce()
		if ended {
			call.End(ErrNoEvidence)
			return
		}
		if IsFailure(result) {
			b.Trip() // there were enough misses
		}
		call.End(result)
	})
	if !started {
		b.probingMisses.Store(false)
	}
}

// probe probes a server with an open breaker until it works or is no longer used.
func (b *Breaker) probe() {
	tick := time.NewTicker(probeEvery / 2)
	defer tick.Stop()
	for b.IsOpen() && !b.stopped.Load() {
		select {
		case <-b.config.Life.Done():
			return
		case <-tick.C:
		}
		call, ok := b.admit()
		if !ok {
			continue // not half-open yet
		}
		result, ended := b.askOnce()
		if ended { // the client may wait longer; Close does not
			return
		}
		call.End(result)
	}
}

// askOnce probes the server once. ended reports whether Life ended before.
func (b *Breaker) askOnce() (result error, ended bool) {
	answer := make(chan error, 1)
	go func() { answer <- b.config.Probe() }()
	select {
	case result := <-answer:
		return result, false
	case <-b.config.Life.Done():
		return nil, true
	}
}
