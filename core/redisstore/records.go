package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// A record is one string: a head of fixed width, so that a script can change a part of it in place,
// and the result. Counted from 1, as Lua does:
//
//	  1       "1", the version of the layout
//	  2       state: F in flight, C completed, N not retained, U unknown
//	  3       "1" if the attempt may have had effects
//	  4       "1" if an attempt before it may have
//	  5- 26   owner
//	 27- 69   fingerprint
//	 70- 77   number of the attempt
//	 78- 93   end of the lease, µs of the server's clock
//	 94-109   length of the lease, µs
//	110-113   status
//	114-      data
//
// It expires after the retention; the end of a lease erases nothing.

// abandonedFor is for how long a delayed begin of an abandoned attempt is refused.
const abandonedFor = time.Minute

func (s *Store) recordKey(id string) string { return s.config.prefix + ":g:{" + id + "}" }

func (s *Store) abandonedKey(id, owner string) string { return s.recordKey(id) + ":x:" + owner }

// BeginOperation implements guard.Store: one script call, and before the first one a look at the
// server's eviction policy.
func (s *Store) BeginOperation(ctx context.Context, req guard.BeginRequest) (guard.BeginReply, error) {
	rerun := 0
	if req.Rerun {
		rerun = 1
	}
	keys := []string{s.recordKey(req.ID), s.abandonedKey(req.ID, req.Owner)}
	args := []any{&req.Owner, &req.Fingerprint, req.Lease.Microseconds(), req.Retention.Milliseconds(), rerun}
	st := step{scriptCall: scriptCall{beginOperation, keys, args}, op: opBeginOperation, begins: true}
	return run(ctx, s, st, func(r stepReply) (guard.BeginReply, error) { return readBeginReply(r.value) })
}

var outcomes = map[string]guard.BeginOutcome{
	"started": guard.Started, "settled": guard.Settled, "busy": guard.Busy,
	"mismatched": guard.Mismatched, "undecided": guard.Undecided, "refused": guard.Refused,
}

func readBeginReply(reply any) (guard.BeginReply, error) {
	var b guard.BeginReply
	fields, ok := reply.([]any)
	if !ok || len(fields) < 2 {
		return b, errOddReply
	}
	name, _ := fields[0].(string)
	number, isNumber := fields[1].(int64)
	if b.Outcome, ok = outcomes[name]; !ok || !isNumber {
		return b, errOddReply
	}
	b.Number = int(number)
	switch {
	case b.Outcome == guard.Busy && len(fields) == 3:
		left, _ := fields[2].(int64)
		b.Remaining = time.Duration(left) * time.Microsecond
	case b.Outcome == guard.Settled && len(fields) == 6:
		letter, _ := fields[3].(string)
		status, _ := fields[4].(int64)
		data, _ := fields[5].(string)
		if b.State, ok = states[letter]; !ok {
			return b, errOddReply
		}
		b.Status, b.Data = int(status), []byte(data)
	case b.Outcome == guard.Busy, b.Outcome == guard.Settled:
		return b, errOddReply
	}
	return b, nil
}

var (
	states  = map[string]guard.State{"C": guard.Completed, "N": guard.NotRetained, "U": guard.Unknown}
	letters = map[guard.State]string{guard.Completed: "C", guard.NotRetained: "N", guard.Unknown: "U"}
)

// SettleOperation implements guard.Store: one script call. If the server's memory is full, a
// result is settled as not retained with a second one.
func (s *Store) SettleOperation(ctx context.Context, req guard.SettleRequest) (bool, error) {
	letter, ok := letters[req.State]
	if !ok {
		return false, fmt.Errorf("redisstore: SettleOperation: state %d settles nothing", req.State)
	}
	if req.State != guard.Completed {
		return s.settle(ctx, settleSmall, &req, letter, nil)
	}
	settled, err := s.settle(ctx, settleOperation, &req, letter, req.Data)
	if isOutOfMemory(err) {
		settled, err = s.settle(ctx, settleSmall, &req, letters[guard.NotRetained], nil)
	}
	return settled, err
}

func (s *Store) settle(ctx context.Context, sc *script, req *guard.SettleRequest, letter string, data []byte) (bool, error) {
	return s.owned(ctx, opSettleOperation, scriptCall{sc, []string{s.recordKey(req.ID)}, []any{
		&req.Owner, &req.Fingerprint, req.Number, letter, req.Status, req.Retention.Milliseconds(), data,
	}})
}

// AbandonOperation implements guard.Store.
func (s *Store) AbandonOperation(ctx context.Context, id, owner string) (bool, error) {
	keys := []string{s.recordKey(id), s.abandonedKey(id, owner)}
	return s.owned(ctx, opSettleOperation, scriptCall{abandonOperation, keys, []any{owner, abandonedFor.Milliseconds()}})
}

// MarkOperation implements guard.Store.
func (s *Store) MarkOperation(ctx context.Context, id, owner string, dirty bool) (bool, error) {
	bit := "0"
	if dirty {
		bit = "1"
	}
	return s.owned(ctx, opSettleOperation, scriptCall{markOperation, []string{s.recordKey(id)}, []any{owner, bit}})
}

// owned runs a script that finishes something, and reports whether it answered 1: that whoever asks had
// what it finishes.
func (s *Store) owned(ctx context.Context, op operation, call scriptCall) (bool, error) {
	return run(ctx, s, step{scriptCall: call, op: op, urgency: finishing}, func(r stepReply) (bool, error) {
		n, ok := r.value.(int64)
		if !ok {
			return false, errOddReply
		}
		return n == 1, nil
	})
}

// RenewOperations implements guard.Store: one pipeline for each hundred.
func (s *Store) RenewOperations(ctx context.Context, reqs []guard.RenewRequest) ([]bool, error) {
	calls := make([]scriptCall, len(reqs))
	for i, r := range reqs {
		calls[i] = scriptCall{
			renewOperation, []string{s.recordKey(r.ID)}, []any{r.Owner, r.Lease.Microseconds(), r.Retention.Milliseconds()},
		}
	}
	return s.renewEach(ctx, opRenewOperations, calls)
}

// errRing is returned to locks, semaphores and guards on a Ring: what a shard holds would be looked for, and
// begun anew, on another shard whenever the first cannot be reached.
var errRing = errors.New("redisstore: locks, semaphores and guards cannot keep their promises on a Ring; use Cluster")

// checkEviction refuses a server that may evict locks and records, once it has been asked.
func (s *Store) checkEviction(ctx context.Context) error {
	if s.safe.Load() {
		return nil
	}
	if _, isRing := s.client.(*redis.Ring); isRing {
		return fmt.Errorf("%w: %w", outage.ErrUnavailable, errRing)
	}
	if s.config.allowEviction {
		s.safe.Store(true)
		return nil
	}
	var err error
	switch client := s.client.(type) {
	case *redis.ClusterClient:
		err = client.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			return s.checkPolicy(ctx, master)
		})
	default:
		err = s.checkPolicy(ctx, client)
	}
	if err == nil {
		s.safe.Store(true)
	}
	return err
}

func (s *Store) checkPolicy(ctx context.Context, client redis.Cmdable) error {
	settings, err := client.ConfigGet(ctx, "maxmemory-policy").Result()
	if err != nil {
		if isReply(err) && !didNotRun(err) {
			s.config.logger.Warn("lockkeeper: cannot read Redis's maxmemory-policy; locks and guards rely on noeviction", "error", err)
			return nil
		}
		return err
	}
	if policy, ok := settings["maxmemory-policy"]; ok && policy != "noeviction" {
		return fmt.Errorf("%w: redisstore: maxmemory-policy is %s, which may evict a lock that is held, or the record of an operation that has run; "+
			"set noeviction, or accept it with redisstore.AllowEviction", outage.ErrUnavailable, policy)
	}
	return nil
}
