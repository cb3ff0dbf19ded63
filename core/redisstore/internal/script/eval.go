package script

import (
	"encoding"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// Call is one run of a script.
type Call struct {
	Script *Script
	Keys   []string
	Args   []any
	// Divisible is set if the sender divides the call, instead of a retry, if its error IsTorn. In
	// a pipeline only.
	Divisible bool
}

// Call returns a run of the script.
func (s *Script) Call(keys []string, args ...any) Call {
	return Call{Script: s, Keys: keys, Args: args}
}

// eval runs a script on the node. While there is time, it is repeated if it has not run for a
// reason that may soon be gone, and, unless once, if the connection broke.
func (n *Node) eval(c *callContext, once bool, call Call) (reply any, err error) {
	if err := n.load(c); err != nil {
		return nil, err
	}
	var tries retries
	for {
		if reply, err = n.evalForm(c, call); err == nil || !n.again(c, &tries, err, once) {
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
func (n *Node) evalForm(c *callContext, call Call) (any, error) {
	form := call.Script.in(n.owner)
	reply, err := n.process(c, byHash, form.sha, call)
	if isNoScript(err) {
		n.loaded.Store(false)
		reply, err = n.process(c, byText, form.text, call)
	}
	if isNoShebang(err) && form == &call.Script.modern {
		n.owner.plainScripts.Store(true)
		reply, err = n.process(c, byText, call.Script.plain.text, call)
	}
	return reply, err
}

func (n *Node) process(c *callContext, command any, script []byte, call Call) (any, error) {
	cmd := newEval(c, command, script, call)
	before := c.sent.count()
	_ = n.owner.config.Redis.Process(&c.client, onceCmd{cmd})
	reply, err := cmd.Result()
	if redisfault.IsReply(err) { // with an error reply, the outcome is known
		c.sent.settle(before)
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

// evalMemory is the memory of a command and its arguments.
type evalMemory struct {
	cmd     redis.Cmd
	tracked tracked
	args    [20]any // most have fewer
}

func newEval(c *callContext, command any, script []byte, call Call) *redis.Cmd {
	e := &c.eval
	if e.tracked.inFlight != nil { // for the first command only, as that may still be in use
		e = new(evalMemory)
	}
	e.tracked = tracked{script, &c.sent}
	e.cmd = *redis.NewCmd(&c.client, appendEval(e.args[:0], command, &e.tracked, call)...)
	setKeyPosition(&e.cmd, call)
	return &e.cmd
}

// setKeyPosition sets the position of the keys, which the client would otherwise find by formatting
// their number.
func setKeyPosition(cmd *redis.Cmd, call Call) {
	if len(call.Keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
}

// appendEval appends the arguments of a command that runs a script.
func appendEval(all []any, command any, script encoding.BinaryMarshaler, call Call) []any {
	all = append(slices.Grow(all, 3+len(call.Keys)+len(call.Args)), command, script, len(call.Keys))
	for i := range call.Keys {
		all = append(all, &call.Keys[i]) // converting a string to an interface allocates, converting a pointer does not
	}
	return append(all, call.Args...)
}
