package script

import (
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// evalAcked runs a script as eval does, but without retries, and returns the number of replicas
// that have confirmed its writes.
func (n *Node) evalAcked(c *callContext, call Call) (reply any, acks int, err error) {
	if err := n.load(c); err != nil {
		return nil, 0, err
	}
	server := redis.Cmdable(n.owner.config.Redis)
	cluster, isCluster := server.(*redis.ClusterClient)
	command, form := byHash, call.Script.in(n.owner)
	if !n.loaded.Load() { // another call loads: without the script, WAIT would wait for nothing
		command = byText
	}
	for range 4 { // each case below occurs at most once, unless the Cluster keeps changing
		if isCluster {
			if server, err = cluster.MasterForKey(c, call.Keys[0]); err != nil {
				return nil, 0, err
			}
		}
		reply, acks, err = n.evalWait(c, server, command, form, call)
		switch {
		case isNoScript(err):
			n.loaded.Store(false)
			command = byText
		case isNoShebang(err) && form == &call.Script.modern:
			n.owner.plainScripts.Store(true)
			command, form = byText, &call.Script.plain
		case isCluster && redisfault.IsReply(err) && redis.HasErrorPrefix(err, "MOVED"):
			cluster.ReloadState(c)
		default:
			if err == nil {
				n.owner.nodes.recordMap()
			}
			return reply, acks, err
		}
	}
	return reply, acks, err
}

// evalWait runs a script and WAIT on one connection, since WAIT covers the writes of its connection
// only. Without a reply to WAIT it returns the script's reply, and zero replicas.
func (n *Node) evalWait(c *callContext, server redis.Cmdable, command any, form *source, call Call) (reply any, acks int, err error) {
	script := form.sha
	if command == byText {
		script = form.text
	}
	before := c.sent.count()
	cmd := newEval(c, command, script, call)
	wait := redis.NewIntCmd(&c.client, "wait", n.owner.config.Acks, n.owner.config.AckTimeout.Milliseconds())
	pipe := server.Pipeline()
	_ = pipe.Process(&c.client, onceCmd{cmd})
	_ = pipe.Process(&c.client, wait)
	_, _ = pipe.Exec(&c.client)
	reply, err = cmd.Result()
	if redisfault.IsReply(err) {
		c.sent.settle(before)
	}
	if err != nil || wait.Err() != nil {
		return reply, 0, err
	}
	return reply, int(wait.Val()), nil
}
