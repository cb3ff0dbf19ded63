package redisstore

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/sony/gobreaker/v2"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// Decisions that are asked for while others are under way go together, many in one call of a script: it
// costs the server, and the client, a fraction of what as many calls would. Whoever asks while nobody else
// does has a call of its own, at once.

const (
	// maxTakers is how many calls are under way before decisions are collected: one that the server works
	// on, and one that is on its way.
	maxTakers = 2
	// maxDecisions and maxKeys bound one call, which takes a server about 2.5 µs for each decision.
	maxDecisions = 64
	maxKeys      = 256
	// maxCharges bounds the memory of those that wait.
	maxCharges = 1 << 16
)

// charges are the decisions of a store on a single server.
type charges struct {
	mu      sync.Mutex
	takers  int // calls under way
	waiting []*charge
}

// charge is a decision that goes with others.
type charge struct {
	req   tokenbucket.TakeRequest
	keys  []string
	state chargeState // charges.mu guards it
	done  chan struct{}
	reply tokenbucket.TakeReply
	err   error
}

type chargeState int

const (
	chargeWaits chargeState = iota
	chargeSent              // or about to be
	chargeLeft              // its caller has left before it was
)

// begin reports whether a caller may make a call of its own. It then ends it with end.
func (c *charges) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.takers >= maxTakers {
		return false
	}
	c.takers++
	return true
}

// end ends a call, or has it go on, in the background, with what has come meanwhile.
func (c *charges) end(s *Store) {
	batch := c.next()
	if batch == nil {
		return
	}
	go func() {
		for ; batch != nil; batch = c.next() {
			s.takeMany(batch)
		}
	}()
}

// next returns what goes with the next call. If nobody waits it returns nothing, and the call has ended.
func (c *charges) next() []*charge {
	c.mu.Lock()
	defer c.mu.Unlock()
	var batch []*charge
	n, keys := 0, 0
	for ; n < len(c.waiting) && len(batch) < maxDecisions; n++ {
		w := c.waiting[n]
		if w.state == chargeLeft {
			continue
		}
		if keys += len(w.keys); keys > maxKeys && len(batch) > 0 {
			break
		}
		w.state = chargeSent
		batch = append(batch, w)
	}
	clear(c.waiting[:n])
	if c.waiting = c.waiting[n:]; len(c.waiting) == 0 {
		c.waiting = nil
	}
	if batch == nil {
		c.takers--
	}
	return batch
}

// add has a decision go with the next call. It reports false if too many wait. A call that has ended
// meanwhile is begun again.
func (c *charges) add(s *Store, w *charge) bool {
	c.mu.Lock()
	if len(c.waiting) >= maxCharges {
		c.mu.Unlock()
		return false
	}
	c.waiting = append(c.waiting, w)
	idle := c.takers < maxTakers
	if idle {
		c.takers++
	}
	c.mu.Unlock()
	if idle {
		c.end(s)
	}
	return true
}

// leave takes back a decision whose caller leaves. It reports false if it has been sent.
func (c *charges) leave(w *charge) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.state == chargeWaits {
		w.state = chargeLeft
	}
	return w.state == chargeLeft
}

// takeTogether makes a decision with others. It returns when that is made, at the store's own deadline, or
// at ctx's.
func (s *Store) takeTogether(ctx context.Context, req tokenbucket.TakeRequest, keys []string) (tokenbucket.TakeReply, error) {
	if s.closed.Load() {
		return tokenbucket.TakeReply{}, outage.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return tokenbucket.TakeReply{}, err
	}
	if s.breaker.State() != gobreaker.StateClosed {
		return tokenbucket.TakeReply{}, errDown
	}
	w := &charge{req: req, keys: keys, done: make(chan struct{})}
	if !s.charges.add(s, w) {
		return tokenbucket.TakeReply{}, errStuck
	}
	bounded := s.deadlines.begin(ctx, s.config.timeout)
	defer s.deadlines.end(bounded)
	var why error
	select {
	case <-w.done:
		return w.reply, w.err
	case <-ctx.Done():
		why = context.Cause(ctx)
	case <-bounded.Done():
		why = context.DeadlineExceeded
	}
	open := !s.charges.leave(w)
	select {
	case <-w.done: // both at once: the answer counts
		return w.reply, w.err
	default:
	}
	return tokenbucket.TakeReply{}, explain(fmt.Errorf("no reply in time: %w", why), open)
}

// takeMany makes the decisions of a batch, and answers those who wait for them.
func (s *Store) takeMany(batch []*charge) {
	keys, args := manyArgs(batch)
	replies, err := call(context.Background(), s, opTakeTokens, ordinary, func(ctx context.Context) ([]any, error) {
		s.telemetry.Batch(ctx, len(batch))
		reply, err := resend(ctx, func() (any, error) { return s.eval(ctx, true, takeMany, keys, args...) })
		if err != nil {
			return nil, err
		}
		replies, ok := reply.([]any)
		if !ok || len(replies) != len(batch) {
			return nil, errOddReply
		}
		return replies, nil
	})
	for i, w := range batch {
		if w.err = err; err == nil {
			w.reply, w.err = readOneOfMany(replies[i], len(w.keys))
		}
		close(w.done)
	}
}

// manyArgs returns keys and arguments of the script. Decisions whose charges are the same slice, as those
// of a limiter are, share a plan.
func manyArgs(batch []*charge) (keys []string, args []any) {
	type plan struct {
		charges *tokenbucket.Charge
		n       int
	}
	plans := make(map[plan]int)
	args = append(args, 0)
	numbers := make([]any, len(batch))
	for i, w := range batch {
		keys = append(keys, w.keys...)
		p := plan{&w.req.Charges[0], len(w.req.Charges)}
		if plans[p] == 0 {
			plans[p] = len(plans) + 1
			args = appendCharges(append(args, len(w.req.Charges)), w.req.Charges)
		}
		numbers[i] = plans[p]
	}
	args[0] = len(plans)
	if len(plans) > 1 {
		args = append(args, numbers...)
	}
	return keys, args
}

func readOneOfMany(reply any, charges int) (tokenbucket.TakeReply, error) {
	switch r := reply.(type) {
	case int64:
		if charges != 1 {
			break
		}
		if r < 0 {
			return tokenbucket.TakeReply{Debts: tokenbucket.OneDebt(tokenbucket.Span{Micros: -1 - r})}, nil
		}
		return tokenbucket.TakeReply{Allowed: true, Debts: tokenbucket.OneDebt(tokenbucket.Span{Micros: r})}, nil
	case []any:
		if len(r) != 1 {
			return readTakeReply(reply, charges)
		}
		if text, ok := r[0].(string); ok {
			return tokenbucket.TakeReply{}, explain(scriptError(text), false)
		}
	}
	return tokenbucket.TakeReply{}, errOddReply
}

// scriptError is an error of a part of a script.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError has it be a reply of the server's.
func (scriptError) RedisError() {}

var _ redis.Error = scriptError("")
