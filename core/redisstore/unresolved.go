package redisstore

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// maxInboxes is the maximum of processes that get a push when an attempt ends. Others check.
const maxInboxes = 64

// AwaitOperation implements store.AwaitedRecords. It waits for a push, and checks every three seconds, and
// when the attempt's lease ends.
func (s *Store) AwaitOperation(ctx context.Context, ref store.OperationRef) error {
	all := s.operationKeys(&ref, "", true)
	keys := all.list()[:2]
	return s.waiting.AwaitPush(ctx, "ended "+keys[0], func(pushed bool) (bool, time.Duration, error) {
		if pushed { // another attempt may have begun since
			return true, 0, nil
		}
		st := script.Step{
			Call: awaitOperation.Call(keys, s.inbox.channel, waiting.NoticeLife.Milliseconds(), maxInboxes), Operation: opBeginOperation, Begins: true,
		}
		left, err := script.Run(ctx, s.redis, st, func(r script.Reply) (int, error) { return script.Int(r.Value) })
		return left <= 0, time.Duration(left) * time.Microsecond, err
	})
}

// InspectOperation implements store.ResolvableRecords: one script call, which changes nothing.
func (s *Store) InspectOperation(ctx context.Context, ref store.OperationRef) (record store.OperationRecord, found bool, err error) {
	st := script.Step{Call: inspectOperation.Call([]string{s.recordKey(&ref)}, "0"), Operation: opInspect, Urgency: script.Reading}
	record, err = script.Run(ctx, s.redis, st, func(r script.Reply) (store.OperationRecord, error) {
		record, ok, err := readRecord(ref, r.Value)
		found = ok
		return record, err
	})
	return record, found, err
}

func readRecord(ref store.OperationRef, reply any) (record store.OperationRecord, found bool, err error) {
	r := script.Fields(reply)
	letter := r.Text()
	if letter == "" {
		return record, false, r.Err
	}
	state, ok := recordStates[letter]
	if !ok {
		return record, false, script.ErrOddReply
	}
	record = store.OperationRecord{OperationRef: ref, State: state, Number: int(r.Number()), Effects: effectsOf(r.Text())}
	record.Age, record.Changed, record.Lease = r.Micros(), r.Micros(), r.Micros()
	record.Expires = time.Duration(r.Number()) * time.Millisecond
	record.Status, record.Bytes, record.Version, record.Holder = int(r.Number()), int(r.Number()), r.Text(), r.Text()
	for len(r.Left) > 0 && r.Err == nil {
		record.Steps = append(record.Steps, r.Text())
	}
	return record, true, r.Err
}

// ListUnresolved implements store.ResolvableRecords: it scans all keys of every master, a hundred at a time.
func (s *Store) ListUnresolved(ctx context.Context, guard string) iter.Seq2[store.OperationRecord, error] {
	pattern := glob.Replace(s.config.prefix) + ofRecords + "*}:*:" + glob.Replace(guard)
	of := func(key string) (store.OperationRef, bool) { return s.operationOf(key, guard) }
	return list(ctx, s, pattern, of,
		func(ref store.OperationRef) script.Call {
			return inspectOperation.Call([]string{s.recordKey(&ref)}, "1")
		}, readRecord)
}

// operationOf is the reverse of recordKey.
func (s *Store) operationOf(key, guard string) (ref store.OperationRef, ok bool) {
	rest, ok := strings.CutPrefix(key, s.config.prefix+ofRecords)
	if !ok {
		return ref, false
	}
	scope, rest, _ := strings.Cut(rest, "}:")
	id, name, _ := strings.Cut(rest, ":")
	if id == "" {
		scope, id = "", scope
	}
	return store.OperationRef{Guard: guard, Scope: scope, ID: id}, name == guard
}

// ResolveOperation implements store.ResolvableRecords: one script call.
func (s *Store) ResolveOperation(ctx context.Context, req store.ResolveRequest) (store.ResolveOutcome, error) {
	letter, ok := map[store.RecordState]string{store.InFlight: "F", store.Completed: "C", store.NotRetained: "N"}[req.State]
	if !ok {
		return 0, fmt.Errorf("redisstore: ResolveOperation: state %d resolves nothing", req.State)
	}
	keys := s.operationKeys(&req.OperationRef, "", true)
	call := resolveOperation.Call(keys.list(),
		&req.Owner, &req.Version, letter, fmt.Sprintf("%04d", req.Status), req.Data, req.Retention.Milliseconds())
	st := script.Step{Call: call, Operation: opSettleOperation, Urgency: script.Finishing}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (store.ResolveOutcome, error) {
		n, err := script.Int(r.Value)
		if err == nil && (n < 0 || n >= len(resolveOutcomes)) {
			return 0, script.ErrOddReply
		}
		if err != nil {
			return 0, err
		}
		return resolveOutcomes[n], nil
	})
}

// resolveOutcomes are the outcomes by the number that the script returns.
var resolveOutcomes = [...]store.ResolveOutcome{store.Resolved, store.RecordChanged, store.RecordInUse, store.RecordResolved}
