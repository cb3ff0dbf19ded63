package script

import (
	"context"
	"encoding"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// Call is one run of a script.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
}

// Call returns a run of the script.
func (s *Script) Call(keys []string, args ...any) Call { return Call{s, keys, args} }

// eval runs a script on the node. It is repeated, while there is time, if it has not run for a
// reason that may soon be gone; unless once, also if the connection broke.
func (n *Node) eval(ctx context.Context, once bool, call Call) (reply any, err error) {
	if err := n.load(ctx); err != nil {
		return nil, err
	}
	var tries retries
	for {
		if reply, err = n.evalForm(ctx, call); err == nil || !tries.again(ctx, err, once) {
			break
		}
	}
	if err == nil {
		n.owner.nodes.recordMap()
	}
	return reply, err
}

// evalForm runs a script by its hash, or by its text if the server does not have it, in the form
// that the server supports.
func (n *Node) evalForm(ctx context.Context, call Call) (any, error) {
	form := call.Script.in(n.owner)
	reply, err := n.process(ctx, byHash, form.sha, call)
	if isNoScript(err) {
		n.loaded.Store(false)
		reply, err = n.process(ctx, byText, form.text, call)
	}
	if isNoShebang(err) && form == &call.Script.modern {
		n.owner.plainScripts.Store(true)
		reply, err = n.process(ctx, byText, call.Script.plain.text, call)
	}
	return reply, err
}

func (n *Node) process(ctx context.Context, command any, script []byte, call Call) (any, error) {
	cmd := newEval(ctx, command, script, call)
	sent := inFlightOf(ctx)
	before := sent.count()
	_ = n.owner.config.Redis.Process(ctx, onceCmd{cmd})
	reply, err := cmd.Result()
	if redisfault.IsReply(err) { // with an error reply, the outcome is known
		sent.settle(before)
	}
	return reply, err
}

// onceCmd is a command that the client never retries by itself, since eval does. The client would
// retry until the deadline if a server refuses because it is a replica or paused.
type onceCmd struct{ *redis.Cmd }

func (onceCmd) NoRetry() bool { return true }

// The commands that run a script, as interface values: converting a string would allocate each
// time.
var byHash, byText any = "evalsha", "eval"

func newEval(ctx context.Context, command any, script []byte, call Call) *redis.Cmd {
	e := new(struct { // one allocation instead of two
		tracked
		few [24]any
	})
	e.tracked = tracked{script, inFlightOf(ctx)}
	return newEvalIn(ctx, e.few[:0], command, &e.tracked, call)
}

// newEvalOf is newEval with a given script argument.
func newEvalOf(ctx context.Context, command any, script encoding.BinaryMarshaler, call Call) *redis.Cmd {
	return newEvalIn(ctx, make([]any, 0, 3+len(call.Keys)+len(call.Args)), command, script, call)
}

func newEvalIn(ctx context.Context, all []any, command any, script encoding.BinaryMarshaler, call Call) *redis.Cmd {
	all = append(all, command, script, len(call.Keys))
	for i := range call.Keys {
		all = append(all, &call.Keys[i]) // converting a string to an interface allocates, converting a pointer does not
	}
	return redis.NewCmd(ctx, append(all, call.Args...)...)
}
