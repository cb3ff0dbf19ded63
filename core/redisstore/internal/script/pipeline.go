package script

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// maxPipeline is the maximum number of script calls in one pipeline.
const maxPipeline = 100

// Result is the result of a call of a pipeline.
type Result struct {
	Reply any
	Err   error
	open  bool // the script may have run
}

// EvalEachOnce runs scripts that must not run twice on a node, in one pipeline. With results, each
// has its own error, and the returned error is the last one that counts against the node. Without
// results nothing was sent, for the returned reason.
func EvalEachOnce(ctx context.Context, n *Node, op Operation, u Urgency, calls []Call) ([]Result, error) {
	timing := n.owner.telemetry.Begin(ctx, op.Name)
	results, err := n.evalTogether(ctx, true, attempt{urgency: u, writes: u != Reading}, calls)
	timing.End(ctx, err)
	n.LogFault(ctx, err)
	return results, err
}

// evalTogether runs scripts in one pipeline, with results and errors as in EvalEachOnce. For the
// breaker it is one call, which has failed unless the server was ready for all of them.
func (n *Node) evalTogether(ctx context.Context, once bool, a attempt, calls []Call) ([]Result, error) {
	a.node = n
	if err := a.begin(ctx); err != nil {
		return nil, err
	}
	var failed error
	results := n.evalEach(a.context, once, calls)
	for i := range results {
		e := &results[i]
		if e.Err != nil && !IsTorn(e.Err) && (!Refused(e.Err) || redisfault.IsUnauthenticated(e.Err)) {
			failed = e.Err
			if a.context.Err() != nil && !redisfault.IsReply(e.Err) {
				e.Err = tooLate(a.context, &a.context.sent)
			}
		}
		e.Err = n.Explain(e.Err, e.open && !a.anyOutcome)
	}
	return results, a.finish(failed)
}

// RunEach runs scripts in pipelines of at most a hundred. Several nodes are served concurrently, so
// that one without a reply does not delay the others. read gets each result, of the call with index
// i, and returns its error, or nil if that does not matter; it may be called concurrently. RunEach
// returns one of these errors, or that of a node that was not ready, and nil if there is none.
func (c *Client) RunEach(ctx context.Context, op Operation, u Urgency, calls []Call, read func(i int, reply any, err error) error) error {
	var (
		wg     sync.WaitGroup
		mu     sync.Mutex
		failed error
	)
	each := func(n *Node, all []int) {
		for batch := range slices.Chunk(all, maxPipeline) {
			err := n.runEach(ctx, op, u, calls, batch, read)
			mu.Lock()
			if failed == nil {
				failed = err
			}
			mu.Unlock()
		}
	}
	nodes := c.byNode(ctx, calls)
	for n, all := range nodes {
		if len(nodes) == 1 { // without another goroutine
			each(n, all)
		} else {
			wg.Go(func() { each(n, all) })
		}
	}
	wg.Wait()
	return failed
}

// byNode groups the indexes of calls by the nodes of their keys, as far as they are known.
func (c *Client) byNode(ctx context.Context, calls []Call) map[*Node][]int {
	nodes := make(map[*Node][]int)
	for i, call := range calls {
		n := c.nodes.of(ctx, call.Keys[0])
		nodes[n] = append(nodes[n], i)
	}
	return nodes
}

// runEach runs the calls with these indexes in one pipeline, and returns an error as RunEach does.
func (n *Node) runEach(ctx context.Context, op Operation, u Urgency, calls []Call, batch []int, read func(int, any, error) error) error {
	timing := n.owner.telemetry.Begin(ctx, op.Name)
	n.owner.telemetry.Batch(ctx, len(batch))
	results, err := n.evalTogether(ctx, false, attempt{urgency: u, writes: !op.Reads, anyOutcome: op.anyOutcome()}, pick(calls, batch))
	if results == nil {
		results = slices.Repeat([]Result{{Err: err}}, len(batch))
	}
	for i, e := range results {
		if failed := read(batch[i], e.Reply, e.Err); err == nil {
			err = failed
		}
	}
	timing.End(ctx, err)
	n.LogFault(ctx, err)
	return err
}

// evalEach runs scripts in one pipeline. It retries a script in further pipelines where eval would
// retry it.
func (n *Node) evalEach(c *callContext, once bool, calls []Call) []Result {
	if err := n.load(c); err != nil {
		return slices.Repeat([]Result{{Err: err}}, len(calls))
	}
	all := n.evalPipelined(c, once, calls)
	var tries retries
	for {
		var failed []int
		for i := range all {
			if err := all[i].Err; err != nil && (!calls[i].Divisible || !IsTorn(err)) && worthRetry(err, once) {
				failed = append(failed, i)
			}
		}
		if len(failed) == 0 || !n.again(c, &tries, all[failed[0]].Err, once) {
			return all
		}
		for i, e := range n.evalPipelined(c, once, pick(calls, failed)) {
			e.open = e.Err != nil && (e.open || all[failed[i]].open)
			all[failed[i]] = e
		}
	}
}

// evalPipelined runs scripts in one pipeline. A second one runs the scripts that the server does
// not have.
func (n *Node) evalPipelined(c *callContext, once bool, calls []Call) []Result {
	all := n.pipeline(c, calls, func(i int) (any, []byte) { return byHash, calls[i].Script.in(n.owner).sha })
	var missing []int
	for i := range all {
		if isNoScript(all[i].Err) {
			missing = append(missing, i)
		}
	}
	if len(missing) == 0 {
		return all
	}
	n.loaded.Store(false)
	again := pick(calls, missing)
	known := make(map[*Script]bool) // its text is sent earlier in this pipeline
	for i, e := range n.pipeline(c, again, func(i int) (any, []byte) {
		form := again[i].Script.in(n.owner)
		if known[again[i].Script] {
			return byHash, form.sha
		}
		known[again[i].Script] = true
		return byText, form.text
	}) {
		if isNoScript(e.Err) || isNoShebang(e.Err) { // several servers, or an old one
			before := c.sent.count()
			e.Reply, e.Err = n.eval(c, once, again[i])
			e.open = e.Err != nil && c.sent.count() > before
		}
		e.open = e.Err != nil && (e.open || all[missing[i]].open)
		all[missing[i]] = e
	}
	return all
}

// pipeline sends scripts, each with the command and the hash or text that as returns for its index.
func (n *Node) pipeline(c *callContext, calls []Call, as func(i int) (command any, script []byte)) []Result {
	words := 0
	for i := range calls {
		words += 3 + len(calls[i].Keys) + len(calls[i].Args)
	}
	var (
		// Not reused: hooks of the client may keep them.
		cmds    = make([]redis.Cmd, len(calls))
		queued  = make([]redis.Cmder, len(calls))
		scripts = make([]trackedEach, len(calls))
		args    = make([]any, 0, words)
	)
	for i, call := range calls {
		command, text := as(i)
		scripts[i].tracked = tracked{text, &c.sent}
		first := len(args)
		args = appendEval(args, command, &scripts[i], call)
		cmds[i] = *redis.NewCmd(&c.client, slices.Clip(args[first:])...)
		setKeyPosition(&cmds[i], call)
		queued[i] = onceCmd{&cmds[i]}
	}
	pipe := n.owner.config.Redis.Pipeline()
	_ = pipe.BatchProcess(&c.client, queued...)
	_, _ = pipe.Exec(&c.client)
	all := make([]Result, len(calls))
	for i := range cmds {
		reply, err := cmds[i].Result()
		all[i] = Result{reply, err, err != nil && scripts[i].writes.Load() > 0 && !redisfault.IsReply(err)}
	}
	return all
}

// trackedEach is a tracked argument that also counts its own writes.
type trackedEach struct {
	tracked
	writes atomic.Int32
}

func (a *trackedEach) MarshalBinary() ([]byte, error) {
	script, err := a.tracked.MarshalBinary()
	if err == nil {
		a.writes.Add(1)
	}
	return script, err
}

// pick returns the elements of a list with these indexes.
func pick[T any](list []T, indexes []int) []T {
	picked := make([]T, len(indexes))
	for i, n := range indexes {
		picked[i] = list[n]
	}
	return picked
}
