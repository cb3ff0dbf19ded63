// Package backoff has the pauses between tries.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Sleep sleeps for d. It returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Growing makes the pauses between tries. Each is half as long again as the one before, from Min to
// Max, and varied at random by up to half, so that processes do not try in step.
type Growing struct {
	Min, Max time.Duration
	next     time.Duration
}

// Next returns the next pause.
func (p *Growing) Next() time.Duration {
	length := max(p.next, p.Min)
	p.next = min(length+length/2, p.Max)
	return length/2 + rand.N(length) //nolint:gosec // any number will do
}

// Reset makes the next pause the first.
func (p *Growing) Reset() { p.next = 0 }

// leastSpread is the least time over which clients are spread, if their server asks for no delay,
// or a short one.
const leastSpread = 50 * time.Millisecond

// Asked returns the pause of a client whose server asks for delay, after a number of retries: a
// random time from delay to half as much more. The spread doubles with each retry, within most. So
// callers that were refused together spread ever wider, and none comes earlier than the server
// asks.
func Asked(delay time.Duration, retries int, most time.Duration) time.Duration {
	spread := max(delay/2, leastSpread)
	for range retries {
		if spread *= 2; spread >= most {
			break
		}
	}
	return delay + rand.N(max(min(spread, most-delay), 0)+1) //nolint:gosec // spreads clients; no secret
}
