package script

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
)

// evalAcked is eval, and returns how many replicas have confirmed the writes of the script.
func (n *Node) evalAcked(ctx context.Context, call Call) (reply any, acks int, err error) {
	if err := n.load(ctx); err != nil {
		return nil, 0, err
	}
	server := redis.Cmdable(n.owner.config.Redis)
	cluster, isCluster := server.(*redis.ClusterClient)
	command, form := byHash, call.Script.in(n.owner)
	for range 4 { // each of the cases below occurs at most once, unless the Cluster keeps changing
		if isCluster {
			if server, err = cluster.MasterForKey(ctx, call.Keys[0]); err != nil {
				return nil, 0, err
			}
		}
		reply, acks, err = n.evalWait(ctx, server, command, form, call)
		switch {
		case isNoScript(err):
			n.loaded.Store(false)
			command = byText
		case isNoShebang(err) && form == &call.Script.modern:
			n.owner.plainScripts.Store(true)
			command, form = byText, &call.Script.plain
		case isCluster && redisfault.IsReply(err) && redis.HasErrorPrefix(err, "MOVED"):
			cluster.ReloadState(ctx)
		default:
			if err == nil {
				n.owner.nodes.recordMap()
			}
			return reply, acks, err
		}
	}
	return reply, acks, err
}

// evalWait runs a script and WAIT on one connection, since WAIT covers the writes of its
// connection.
func (n *Node) evalWait(ctx context.Context, server redis.Cmdable, command any, form *source, call Call) (reply any, acks int, err error) {
	script := form.sha
	if command == byText {
		script = form.text
	}
	sent := inFlightOf(ctx)
	before := sent.count()
	cmd := newEval(ctx, command, script, call)
	wait := redis.NewIntCmd(ctx, "wait", n.owner.config.Acks, n.owner.config.AckTimeout.Milliseconds())
	pipe := server.Pipeline()
	_ = pipe.Process(ctx, onceCmd{cmd})
	_ = pipe.Process(ctx, wait)
	_, _ = pipe.Exec(ctx)
	reply, err = cmd.Result()
	if redisfault.IsReply(err) {
		sent.settle(before)
	}
	if err != nil || wait.Err() != nil {
		return reply, 0, err // without a reply to WAIT, no replica counts
	}
	return reply, int(wait.Val()), nil
}
