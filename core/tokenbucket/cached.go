package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Cached is a plan that calls f for the limits of a key and keeps them for ttl, so that f may ask a
// database. It keeps the limits of at most maxKeys keys: for a new key it forgets one that expires
// soon. Each limiter, and each call of SetPlan, begins with none.
//
// Only one call of f runs for a key at a time. While it runs, expired limits still apply, however
// old. A caller whose key has no limits waits for the result, even if the limiter is closed. If f
// returns an error:
//   - One that matches store.ErrUnavailable lets the expired limits apply. f is called again after
//     a second, or after ttl if that is less. If there are no limits, callers get the error, which
//     middleware treats as an outage of its store.
//   - After any other error the key's limits are forgotten, and callers get the error.
//
// f gets the context of one of the callers. If that ends, f is called with another's.
func Cached(f PlanFunc, ttl time.Duration, maxKeys int) Plan {
	return &cachedPlans{f: f, ttl: ttl, max: maxKeys}
}

// askAgainAfter is the pause before a source that is unavailable is asked again, if limits do not
// expire sooner.
const askAgainAfter = time.Second

type cachedPlans struct {
	f   PlanFunc
	ttl time.Duration
	max int
}

func (c *cachedPlans) compile(limiter string) (compiledPlan, error) {
	switch {
	case c.f == nil:
		return compiledPlan{}, fmt.Errorf("%w: Cached: nil PlanFunc", ErrInvalidLimit)
	case c.ttl <= 0:
		return compiledPlan{}, fmt.Errorf("%w: Cached: a time of %v is not positive", ErrInvalidLimit, c.ttl)
	case c.max < 1:
		return compiledPlan{}, fmt.Errorf("%w: Cached: a maximum of %d keys is below 1", ErrInvalidLimit, c.max)
	}
	cache := &planCache{
		cachedPlans: *c, limiter: limiter, byKey: make(map[string]cachedPlan), asked: make(map[string]*question),
	}
	return compiledPlan{choose: cache.limits}, nil
}

// planCache keeps the limits that a PlanFunc has chosen for keys.
type planCache struct {
	cachedPlans
	limiter string

	mu    sync.Mutex
	byKey map[string]cachedPlan
	asked map[string]*question // calls of the PlanFunc that run
}

// cachedPlan is the limits of a key.
type cachedPlan struct {
	limits *fixedPlan
	until  time.Time
}

// question is a call of a PlanFunc, and its answer once done is closed.
type question struct {
	done   chan struct{}
	limits *fixedPlan
	err    error
	ended  bool // the context of its caller has ended: other callers do not get its error
}

var errPlanPanicked = errors.New("tokenbucket: the PlanFunc panicked")

func (c *planCache) limits(ctx context.Context, key string) (*fixedPlan, error) {
	for {
		c.mu.Lock()
		p, known := c.byKey[key]
		q := c.asked[key]
		if known && (q != nil || time.Now().Before(p.until)) {
			c.mu.Unlock()
			return p.limits, nil
		}
		if q == nil {
			q = &question{done: make(chan struct{}), err: errPlanPanicked}
			key = strings.Clone(key) // it may outlive the request that the key is a part of
			c.asked[key] = q
			c.mu.Unlock()
			c.ask(ctx, key, q)
			return q.limits, q.err
		}
		c.mu.Unlock()
		select {
		case <-q.done:
			if !q.ended {
				return q.limits, q.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// ask asks the PlanFunc for the limits of a key, and answers the question.
func (c *planCache) ask(ctx context.Context, key string, q *question) {
	defer func() { // also if it panics
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.asked, key)
		p, known := c.byKey[key]
		switch {
		case q.err == nil:
			if !known {
				c.makeRoom()
			}
			c.byKey[key] = cachedPlan{q.limits, time.Now().Add(c.ttl)}
		case known && errors.Is(q.err, store.ErrUnavailable):
			q.limits, q.err = p.limits, nil
			c.byKey[key] = cachedPlan{p.limits, time.Now().Add(min(c.ttl, askAgainAfter))}
		case !q.ended:
			delete(c.byKey, key)
		}
		close(q.done)
	}()
	q.limits, q.err = c.f.limits(ctx, c.limiter, key)
	q.ended = q.err != nil && ctx.Err() != nil
}

// makeRoom removes a key that expires soon if the cache is full. The caller holds mu.
func (c *planCache) makeRoom() {
	if len(c.byKey) < c.max {
		return
	}
	const look = 8
	first, n := "", 0
	for key, p := range c.byKey { // in random order
		if n == 0 || p.until.Before(c.byKey[first].until) {
			first = key
		}
		if n++; n == look {
			break
		}
	}
	delete(c.byKey, first)
}
