package breaker

import (
	"context"
	"time"
)

// probe is one probe of the server.
type probe struct {
	began time.Time
	done  chan struct{} // closed when it has ended
	// result is nil if the server works. It is valid once done is closed.
	result error
}

func (p *probe) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// answers reports whether the probe began after a call was sent, and is in flight or has found that
// the server works.
func (p *probe) answers(sent time.Time) bool {
	return !p.began.Before(sent) && (!p.ended() || p.result == nil)
}

// restAfter is how long after the begin of a probe Doubt starts no other one, unless it has failed:
// callers with short deadlines leave often, and each probe costs a connection.
const restAfter = probeEvery / 2

// Doubt starts a probe in the background, because a call that was sent at that time failed, or has
// no reply. It does nothing while the breaker is open, or if a probe that began later, or a moment
// ago, is in flight or has found that the server works.
func (b *Breaker) Doubt(sent time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.latest; p == nil || !p.answers(time.Now().Add(-restAfter)) {
		b.doubt(sent)
	}
}

// doubt is Doubt without the rest after a probe. The caller holds mu.
func (b *Breaker) doubt(sent time.Time) {
	if p := b.latest; p != nil && p.answers(sent) {
		return
	}
	if sent.After(b.doubted) {
		b.doubted = sent
	}
	b.run()
}

// Ask is Doubt, and returns the result of the probe:
//   - nil if the server works, so that the call may be sent again on another connection;
//   - the error of calls while the breaker is open;
//   - ErrNoEvidence, also if ctx ends first.
func (b *Breaker) Ask(ctx context.Context, sent time.Time) error {
	for {
		b.mu.Lock()
		if b.IsOpen() {
			b.mu.Unlock()
			return b.Err()
		}
		b.doubt(sent)
		p := b.latest
		b.mu.Unlock()
		if p == nil { // Life has ended
			return ErrNoEvidence
		}
		select {
		case <-p.done:
		case <-ctx.Done():
			return ErrNoEvidence
		}
		switch {
		case IsFailure(p.result):
			return b.Err()
		case p.result != nil || !p.began.Before(sent):
			return p.result
		}
	}
}

// run starts the goroutine that probes, unless it is running. The caller holds mu.
func (b *Breaker) run() {
	if b.probing || b.stopped.Load() {
		return
	}
	if !b.IsOpen() {
		b.begin()
	}
	b.probing = b.config.Start(b.probe)
	if !b.probing {
		b.end(ErrNoEvidence)
	}
}

// begin makes the next probe the latest one. The caller holds mu.
func (b *Breaker) begin() { b.latest = &probe{began: time.Now(), done: make(chan struct{})} }

// end ends the latest probe, if it is in flight. The caller holds mu.
func (b *Breaker) end(result error) {
	if b.latest != nil && !b.latest.ended() {
		b.latest.result = result
		close(b.latest.done)
	}
}

// probe probes the server once, and again for calls that were sent later. While the breaker is
// open, it probes until the server works or is no longer used.
func (b *Breaker) probe() {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		if b.IsOpen() {
			select {
			case <-b.config.Life.Done():
			case <-tick.C:
			}
		}
		if !b.next() {
			return
		}
		result, over := b.askOnce()
		if !b.learn(result, over) {
			return
		}
	}
}

// next begins the probe of an open breaker. It returns false if the server is no longer used.
func (b *Breaker) next() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped.Load() || b.config.Life.Err() != nil {
		b.probing = false
		b.end(ErrNoEvidence)
		return false
	}
	if b.IsOpen() {
		b.begin()
	}
	return true
}

// learn records the result of a probe, and reports whether another one is needed.
func (b *Breaker) learn(result error, over bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case over: // the client may wait longer; Close does not
		result = ErrNoEvidence
	case result == nil:
		b.close()
	case IsFailure(result):
		b.fail(result)
	}
	b.end(result)
	again := !over && !IsFailure(result) && b.doubted.After(b.latest.began)
	if again {
		b.begin()
	}
	b.probing = !over && (b.IsOpen() || again)
	return b.probing
}

// askOnce probes the server once. over reports whether Life ended first.
func (b *Breaker) askOnce() (result error, over bool) {
	answer := make(chan error, 1)
	go func() { answer <- b.config.Probe() }()
	select {
	case result := <-answer:
		return result, false
	case <-b.config.Life.Done():
		return nil, true
	}
}
