package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Decisions that are asked for while others are under way go together, many in one call of a script: it
// costs the server, and the client, a fraction of what as many calls would. Whoever asks while nobody else
// does has a call of its own, at once.

const (
	// maxTakers is how many calls are under way before decisions are collected: one that the server works
	// on, and one that is on its way.
	maxTakers = 2
	// patience is how long a decision waits for one of them to end. If the server is far away it then goes
	// in one more call, or it would wait for a second round trip.
	patience = time.Millisecond
	// maxWork bounds one call, since others wait for it, to a fraction of a millisecond: a decision about one
	// bucket, which takes a server 2 to 5 µs, counts one, and each bucket of one about several counts two.
	maxWork = 128
	// maxCharges bounds the memory of those that wait.
	maxCharges = 1 << 16
)

// charges are the decisions of a store, by the server that makes them.
type charges struct {
	only  lane      // of a single server
	spare sync.Pool // of charges whose batches are over

	mu    sync.Mutex
	lanes map[*redis.Client]*lane // of the masters of a Cluster
}

// maxLanes bounds the memory of a Cluster whose masters change. It has 1,000 masters at most.
const maxLanes = 1024

// lane is where decisions of one server wait, while as many calls are under way as may be.
type lane struct {
	start func(func()) bool // has the store wait for a call before it closes
	take  func([]*charge)   // makes the decisions of a batch
	most  int               // calls under way

	mu      sync.Mutex
	takers  int // calls under way
	waiting []*charge
	timer   *time.Timer // for the first of those that wait
	timed   bool        // it runs
}

// charge is a decision that goes with others.
type charge struct {
	charges  []tokenbucket.Charge
	keys     []string
	lane     *lane
	since    time.Time     // it waits
	state    chargeState   // lane.mu guards it, and what follows until it is decided
	decided  chan struct{} // has room for one
	reply    tokenbucket.TakeReply
	err      error
	deadline deadline
}

type chargeState int

const (
	chargeWaits   chargeState = iota
	chargeSent                // or about to be
	chargeDecided             // or its deadline has come
	chargeLeft                // its caller has left
)

// begin reports whether a caller may make a call of its own. It then ends it with end.
func (l *lane) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.takers >= maxTakers {
		return false
	}
	l.takers++
	return true
}

// end ends a call, or has it go on, in the background, with what has come meanwhile.
func (l *lane) end() {
	batch := l.next()
	if batch == nil {
		return
	}
	takeAll := func() {
		for ; batch != nil; batch = l.next() {
			l.take(batch)
			runtime.Gosched() // those who were answered are about to ask again
		}
	}
	if !l.start(takeAll) { // the store is closed, and says so
		takeAll()
	}
}

// next returns what goes with the next call. If nobody waits it returns nothing, and the call has ended.
func (l *lane) next() []*charge {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []*charge
	n, work := 0, 0
	for ; n < len(l.waiting); n++ {
		w := l.waiting[n]
		if w.state != chargeWaits {
			continue
		}
		if work += w.work(); work > maxWork && len(batch) > 0 {
			break
		}
		w.state = chargeSent
		batch = append(batch, w)
	}
	clear(l.waiting[:n])
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	if batch == nil {
		l.takers--
	}
	return batch
}

// add has a decision go with the next call. It reports false if too many wait. A call that has ended
// meanwhile is begun again.
func (l *lane) add(w *charge) bool {
	l.mu.Lock()
	if len(l.waiting) >= maxCharges {
		l.mu.Unlock()
		return false
	}
	l.waiting = append(l.waiting, w)
	idle := l.takers < maxTakers
	if idle {
		l.takers++
	} else {
		l.watch(patience)
	}
	l.mu.Unlock()
	if idle {
		l.end()
	}
	return true
}

// watch has somebody look after the decisions that wait, in a while. The caller holds mu.
func (l *lane) watch(in time.Duration) {
	switch {
	case l.timed:
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(in, l.overdue)
	default:
		l.timer.Reset(in)
	}
	l.timed = true
}

// overdue begins one more call if a decision has waited for too long.
func (l *lane) overdue() {
	l.mu.Lock()
	l.timed = false
	for len(l.waiting) > 0 && l.waiting[0].state != chargeWaits {
		l.waiting[0] = nil
		l.waiting = l.waiting[1:]
	}
	begin := false
	if len(l.waiting) > 0 {
		waited := time.Since(l.waiting[0].since)
		if waited >= patience {
			if begin = l.takers < l.most; begin {
				l.takers++
			}
			waited = 0 // for the next look
		}
		l.watch(patience - waited)
	}
	l.mu.Unlock()
	if begin {
		l.end()
	}
}

func (w *charge) work() int {
	if len(w.keys) == 1 {
		return 1
	}
	return 2 * len(w.keys)
}

// decide answers those of a batch who still wait.
func (l *lane) decide(batch []*charge, reply func(i int) (tokenbucket.TakeReply, error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, w := range batch {
		if w.state == chargeSent {
			w.state = chargeDecided
			w.reply, w.err = reply(i)
			w.decided <- struct{}{} // whoever hears it may use w for something else
		}
	}
}

// expire answers that there was no reply in time.
func (w *charge) expire() {
	w.lane.mu.Lock()
	defer w.lane.mu.Unlock()
	if w.state == chargeWaits || w.state == chargeSent {
		w.err = late(context.DeadlineExceeded, w.state == chargeSent)
		w.state = chargeDecided
		w.decided <- struct{}{}
	}
}

// leave takes back a decision whose caller leaves. It reports false if it has been decided.
func (w *charge) leave(why error) bool {
	w.lane.mu.Lock()
	defer w.lane.mu.Unlock()
	if w.state == chargeDecided {
		return false
	}
	w.err = late(why, w.state == chargeSent)
	w.state = chargeLeft
	return true
}

func late(why error, sent bool) error { return explain(fmt.Errorf("no reply in time: %w", why), sent) }

// laneOf returns the lane of the server that has a key; nil if its decisions go alone.
func (s *Store) laneOf(ctx context.Context, key string) *lane {
	switch client := s.client.(type) {
	case *redis.Client:
		return &s.charges.only
	case *redis.ClusterClient:
		if !s.mapped.Load() { // it would ask the Cluster for its map, for longer than a caller may wait
			return nil
		}
		master, err := client.MasterForKey(ctx, key)
		if err != nil {
			return nil
		}
		return s.charges.of(master, s)
	}
	return nil
}

// mostTakers leaves half of the connections to others.
func (s *Store) mostTakers() int { return max(maxTakers, int(s.maxOrphans[ordinary])) }

func (c *charges) of(master *redis.Client, s *Store) *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.lanes[master]
	if l == nil && len(c.lanes) < maxLanes {
		if c.lanes == nil {
			c.lanes = make(map[*redis.Client]*lane)
		}
		l = &lane{start: s.start, take: s.takeEach, most: s.mostTakers()}
		c.lanes[master] = l
	}
	return l
}

// takeTogether makes a decision with others. It returns when that is made, at the store's own deadline, or
// at ctx's.
func (s *Store) takeTogether(ctx context.Context, l *lane, charges []tokenbucket.Charge, keys []string) (tokenbucket.TakeReply, error) {
	if s.breaker.State() != gobreaker.StateClosed {
		return tokenbucket.TakeReply{}, errDown
	}
	w, _ := s.charges.spare.Get().(*charge)
	if w == nil {
		w = &charge{decided: make(chan struct{}, 1)}
	}
	w.charges, w.keys, w.lane, w.state = charges, append(w.keys[:0], keys...), l, chargeWaits
	w.deadline.of = w
	s.deadlines.begin(&w.deadline, s.config.timeout)
	w.since = w.deadline.at.Add(-s.config.timeout)
	if !l.add(w) {
		s.deadlines.end(&w.deadline)
		return tokenbucket.TakeReply{}, errStuck
	}
	select {
	case <-w.decided:
	case <-ctx.Done():
		if w.leave(context.Cause(ctx)) {
			s.deadlines.end(&w.deadline)
			return tokenbucket.TakeReply{}, w.err
		}
		<-w.decided // both at once: the answer counts
	}
	s.deadlines.end(&w.deadline)
	reply, err := w.reply, w.err
	if isDamage(err) { // of this caller's buckets, since the call itself has worked
		s.damage.Found(ctx)
	}
	if err == nil { // else the client may yet read it
		w.reply, w.charges = tokenbucket.TakeReply{}, nil
		s.charges.spare.Put(w)
	}
	return reply, err
}

// takeMany makes the decisions of a batch in one call of a script, and answers those who wait for them.
func (s *Store) takeMany(batch []*charge) {
	keys, args := manyArgs(batch)
	replies, err := call(context.Background(), s, opTakeTokens, ordinary, func(ctx context.Context) ([]any, error) {
		s.telemetry.Batch(ctx, len(batch))
		reply, err := resend(ctx, func() (any, error) { return s.eval(ctx, true, takeTokens, keys, args...) })
		if err != nil {
			return nil, err
		}
		return readMany(reply, len(batch))
	})
	s.charges.only.decide(batch, answers(batch, replies, err))
}

func readMany(reply any, decisions int) ([]any, error) {
	replies, ok := reply.([]any)
	if !ok || len(replies) != decisions {
		return nil, errOddReply
	}
	return replies, nil
}

// answers returns what each of a batch is answered.
func answers(batch []*charge, replies []any, err error) func(int) (tokenbucket.TakeReply, error) {
	return func(i int) (tokenbucket.TakeReply, error) {
		if err != nil {
			return tokenbucket.TakeReply{}, err
		}
		return readOneOfMany(replies[i], len(batch[i].keys))
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
		p := plan{&w.charges[0], len(w.charges)}
		if plans[p] == 0 {
			plans[p] = len(plans) + 1
			args = appendCharges(append(args, len(w.charges)), w.charges)
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
