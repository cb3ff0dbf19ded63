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
// database. It keeps the limits of at most maxKeys keys: for a new key it forgets one that expires soon.
//
// One call of f for a key runs at a time. Meanwhile the key's other callers wait for it, or are decided by
// the limits that have just expired. If f returns an error that matches store.ErrUnavailable, those apply
// for another second; a key without any gets the error, which middleware treats as an outage of its store.
// Other errors are returned, and not kept.
//
// f gets the context of one of the callers. If that ends, f is called with another's.
func Cached(f PlanFunc, ttl time.Duration, maxKeys int) Plan {
	return &cachedPlans{f: f, ttl: ttl, max: maxKeys}
}

// askAgainAfter is when a source that is unavailable is asked again, if limits do not expire sooner.
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
	cache := &planCache{cachedPlans: *c, limiter: limiter, byKey: make(map[string]*cachedPlan)}
	return compiledPlan{choose: cache.limits}, nil
}

// planCache has the limits of keys, as a PlanFunc has chosen them.
type planCache struct {
	cachedPlans
	limiter string

	mu    sync.Mutex
	byKey map[string]*cachedPlan
}

// cachedPlan is the limits of a key.
type cachedPlan struct {
	limits *fixedPlan // nil before the first answer
	until  time.Time
	asking *question // nil while nobody asks
}

// question is a call of a PlanFunc, and its answer once done is closed.
type question struct {
	done   chan struct{}
	limits *fixedPlan
	err    error
	ended  bool // its context has: the error is not that of others
}

var errPlanPanicked = errors.New("tokenbucket: the PlanFunc panicked")

func (c *planCache) limits(ctx context.Context, key string) (*fixedPlan, error) {
	for {
		c.mu.Lock()
		p := c.byKey[key]
		if p != nil && p.limits != nil && (p.asking != nil || time.Now().Before(p.until)) {
			limits := p.limits
			c.mu.Unlock()
			return limits, nil
		}
		if p == nil {
			p = c.add(key)
		}
		q := p.asking
		if q == nil {
			q = &question{done: make(chan struct{}), err: errPlanPanicked}
			p.asking = q
			c.mu.Unlock()
			c.ask(ctx, key, p, q)
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
func (c *planCache) ask(ctx context.Context, key string, p *cachedPlan, q *question) {
	defer func() { // also if it panics
		c.mu.Lock()
		defer c.mu.Unlock()
		p.asking = nil
		switch {
		case q.err == nil:
			p.limits, p.until = q.limits, time.Now().Add(c.ttl)
		case p.limits != nil && errors.Is(q.err, store.ErrUnavailable):
			q.limits, q.err = p.limits, nil
			p.until = time.Now().Add(min(c.ttl, askAgainAfter))
		case p.limits == nil && c.byKey[key] == p:
			delete(c.byKey, key)
		}
		close(q.done)
	}()
	q.limits, q.err = c.f.limits(ctx, c.limiter, key)
	q.ended = q.err != nil && ctx.Err() != nil
}

// add adds a key, and removes another one if there are too many. The caller holds mu.
func (c *planCache) add(key string) *cachedPlan {
	if len(c.byKey) >= c.max {
		const look = 8
		first, n := "", 0
		for other, p := range c.byKey { // in random order
			if p.asking != nil {
				continue
			}
			if n == 0 || p.until.Before(c.byKey[first].until) {
				first = other
			}
			if n++; n == look {
				break
			}
		}
		if n > 0 {
			delete(c.byKey, first)
		}
	}
	p := new(cachedPlan)
	c.byKey[strings.Clone(key)] = p // it may outlive the request that the key is a part of
	return p
}
