package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ErrNotReplicated is matched by the error of a lock or permit that was granted, but not confirmed
// by the number of replicas of [WithReplicaAcks]. It was released, unless the error also matches
// store.ErrUnconfirmed. It matches store.ErrUnavailable.
var ErrNotReplicated = fmt.Errorf("%w: redisstore: too few replicas have confirmed the grant", store.ErrUnavailable)

// WithReplicaAcks grants locks and permits only after n replicas of the server have confirmed them,
// within timeout, which must be shorter than the store's own and than the client's ReadTimeout.
//
// It reduces what a failover can lose, but not to nothing: a replica that has not confirmed may be
// promoted. While a slot of a Cluster is migrated, its locks may be unavailable.
func WithReplicaAcks(n int, timeout time.Duration) Option {
	return optionFunc(func(c *config) { c.acks, c.ackTimeout = n, timeout })
}

func (c *config) checkAcks(readTimeout time.Duration) error {
	switch {
	case c.acks == 0 && c.ackTimeout == 0:
		return nil
	case c.acks < 1:
		return fmt.Errorf("redisstore: New: a number of %d replicas is less than 1", c.acks)
	case c.ackTimeout < time.Millisecond || c.ackTimeout >= c.timeout:
		return fmt.Errorf("redisstore: New: a replica timeout of %v is not between 1ms and the store's timeout of %v",
			c.ackTimeout, c.timeout)
	case readTimeout > 0 && c.ackTimeout >= readTimeout:
		return fmt.Errorf("redisstore: New: a replica timeout of %v is not shorter than the client's ReadTimeout of %v",
			c.ackTimeout, readTimeout)
	}
	return nil
}

// evalAcked is eval, and returns how many replicas have confirmed its writes, if the store waits
// for replicas.
func (s *Store) evalAcked(ctx context.Context, sc *script, keys []string, args ...any) (reply any, acks int, err error) {
	if s.config.acks == 0 {
		reply, err = s.eval(ctx, false, sc, keys, args...)
		return reply, 0, err
	}
	at := callOf(ctx).node
	if err := at.load(ctx); err != nil {
		return nil, 0, err
	}
	node := redis.Cmdable(s.client)
	cluster, isCluster := s.client.(*redis.ClusterClient)
	command, src := byHash, sc.in(s)
	for range 4 { // each of the cases below occurs at most once, unless the Cluster keeps changing
		if isCluster {
			if node, err = cluster.MasterForKey(ctx, keys[0]); err != nil {
				return nil, 0, err
			}
		}
		reply, acks, err = s.evalWait(ctx, node, command, src, keys, args)
		switch {
		case isNoScript(err):
			at.loaded.Store(false)
			command = byText
		case isNoShebang(err) && src == &sc.modern:
			s.plainScripts.Store(true)
			command, src = byText, &sc.plain
		case isCluster && isReply(err) && redis.HasErrorPrefix(err, "MOVED"):
			cluster.ReloadState(ctx)
		default:
			return reply, acks, err
		}
	}
	return reply, acks, err
}

// evalWait runs a script and WAIT on one connection, since WAIT covers the writes of its
// connection.
func (s *Store) evalWait(ctx context.Context, node redis.Cmdable, command any, src *source, keys []string, args []any) (reply any, acks int, err error) {
	script := src.sha
	if command == byText {
		script = src.text
	}
	sent := wireOf(ctx)
	before := sent.count()
	cmd := newEval(ctx, command, script, keys, args)
	wait := redis.NewIntCmd(ctx, "wait", s.config.acks, s.config.ackTimeout.Milliseconds())
	pipe := node.Pipeline()
	_ = pipe.Process(ctx, onceCmd{cmd})
	_ = pipe.Process(ctx, wait)
	_, _ = pipe.Exec(ctx)
	reply, err = cmd.Result()
	if isReply(err) {
		sent.settle(before)
	}
	if err != nil || wait.Err() != nil {
		return reply, 0, err // without a reply to WAIT, no replica counts
	}
	return reply, int(wait.Val()), nil
}

// notReplicated releases a grant that too few replicas have confirmed.
func (s *Store) notReplicated(ctx context.Context, acks int, release func(context.Context) error) error {
	err := fmt.Errorf("%w: %d of %d", ErrNotReplicated, acks, s.config.acks)
	failed := release(context.WithoutCancel(ctx))
	if failed != nil && !errors.Is(failed, store.ErrClosed) {
		return fmt.Errorf("%w: %w", store.ErrUnconfirmed, err)
	}
	return err
}
