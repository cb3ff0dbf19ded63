package redisstore

import (
	"context"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
)

// finish runs a script that finishes something, and reports whether the caller owned it.
func (s *Store) finish(ctx context.Context, op script.Operation, call script.Call) (bool, error) {
	st := script.Step{Call: call, Operation: op, Urgency: script.Finishing}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (bool, error) { return script.IsOne(r.Value) })
}

// finishEach is finish for many calls. If it returns an error, the outcomes that are true hold
// nevertheless: in a Cluster, other masters than the failed one may have replied. A lease or record
// with a damaged key counts as not owned.
func (s *Store) finishEach(ctx context.Context, op script.Operation, calls []script.Call) ([]bool, error) {
	owned := make([]bool, len(calls))
	err := s.redis.RunEach(ctx, op, script.Finishing, calls, func(i int, reply any, err error) error {
		if script.IsWrongType(err) {
			return nil
		}
		if err == nil {
			owned[i], err = script.IsOne(reply)
		}
		return err
	})
	return owned, err
}
