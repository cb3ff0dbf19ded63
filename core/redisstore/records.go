package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A record is one string: a head of fixed width, so that a script can change a part of it in place,
// and the result. Counted from 1, as Lua does:
//
//	  1       "3", the version of the layout
//	  2       state: F in flight, R reconciling, C completed, N not retained, U unknown
//	  3       "1" if the attempt may have had effects, "2" if all of them are in steps
//	  4       "1" if an earlier attempt may have had effects
//	  5- 26   owner
//	 27- 69   fingerprint
//	 70- 77   number of the attempt
//	 78- 93   end of the lease, µs of the server's clock
//	 94-109   length of the lease, µs
//	110-113   status
//	114-126   the slice of time in which its scope counts it: see scope.lua
//	127-142   when it was created, µs of the server's clock
//	143-158   when it was last changed, except by renewals, µs of the server's clock
//	159       "1" if processes await the end of the attempt
//	160-162   size of the holder
//	163-      the holder; then the data; of an attempt in flight, the highest Seq of its marks, 10 digits,
//	          and the recorded steps: the sizes of the name and of the data, 3 and 7 digits, and both
//
// It expires after the retention, not with a lease. The records of a scope share a hash tag, and so
// a slot of a Cluster, with the counts of the scope.

// abandonedFor is the life of an abandoned attempt's tombstone, which refuses a delayed begin of
// it.
const abandonedFor = time.Minute

// ofRecords follows the store's prefix in the keys of records, and begins their hash tag.
const ofRecords = ":g:{"

// operationKeys are the keys of a step:
//   - the record, whose key ends in the name of its guard, by which a listing finds it;
//   - the tombstone of an abandoned attempt, if the step needs it;
//   - the inboxes that await the end of an attempt, if the step needs them;
//   - the counts of the scope, if there is one.
type operationKeys struct {
	all [4]string
	n   int
}

func (k *operationKeys) list() []string { return k.all[:k.n] }

// operationKeys returns the keys of a step of an operation: with the tombstone of the owner
// tombstoneOf unless that is empty, and with the inboxes if awaited. They are parts of one string,
// which saves allocations.
func (s *Store) operationKeys(ref *store.OperationRef, tombstoneOf string, awaited bool) (keys operationKeys) {
	id := ""
	if ref.Scope != "" {
		id = ref.ID
	}
	var room [512]byte
	text := append(append(append(room[:0], s.config.prefix...), ofRecords...), cmp.Or(ref.Scope, ref.ID)...)
	text = append(text, '}')
	stem := len(text)
	text = append(append(append(append(text, ':'), id...), ':'), ref.Guard...)
	ends := [4]int{len(text)}
	n := 1
	if tombstoneOf != "" {
		text = append(append(append(append(append(text, text[:stem]...), "x:"...), id...), ':'), tombstoneOf...)
		ends[n] = len(text)
		n++
	}
	if awaited {
		text = append(append(append(text, text[:stem]...), "w:"...), id...)
		ends[n] = len(text)
		n++
	}
	all, from := string(text), 0
	for i, end := range ends[:n] {
		keys.all[i], from = all[from:end], end
	}
	if ref.Scope != "" {
		keys.all[n] = all[:stem]
		n++
	}
	keys.n = n
	return keys
}

func (s *Store) recordKey(ref *store.OperationRef) string {
	keys := s.operationKeys(ref, "", false)
	return keys.all[0]
}

// maxInline is the maximum size of a result in the reply to begin, in bytes. A larger one takes a
// second call, with a timeout for its size, so that it does not delay other steps.
const maxInline = 16 << 10

// BeginOperation implements store.Records: one script call, and before the first one a check of the
// server's eviction policy. A result of more than 16 KiB takes a second call.
func (s *Store) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	c := s.newBeginCall(&req)
	st := script.Step{
		Call: beginOperation.Call(c.keys.list(), c.args[:]...), Operation: opBeginOperation, Begins: true, ReplySize: maxInline,
	}
	reply, err := script.Run(ctx, s.redis, st, func(r script.Reply) (beginReply, error) { return readBeginReply(r.Value) })
	if err == nil && reply.bytes > len(reply.Data) {
		reply.Data, err = s.readResult(ctx, &c.ref, reply)
	}
	return reply.BeginReply, err
}

// beginCall has the arguments of a call in one allocation: see acquireCall.
type beginCall struct {
	ref                                 store.OperationRef
	keys                                operationKeys
	owner, fingerprint, unknown, holder string
	lease, retention                    int64
	maxRecords                          int
	args                                [8]any
}

func (s *Store) newBeginCall(req *store.BeginRequest) *beginCall {
	c := &beginCall{
		ref: req.OperationRef, keys: s.operationKeys(&req.OperationRef, req.Owner, false),
		owner: req.Owner, fingerprint: req.Fingerprint, holder: sized(req.Holder),
		lease: req.Lease.Microseconds(), retention: req.Retention.Milliseconds(), maxRecords: req.MaxRecords,
	}
	switch {
	case req.Rerun:
		c.unknown = "rerun"
	case req.Reconcile:
		c.unknown = "reconcile"
	}
	c.args = [...]any{&c.owner, &c.fingerprint, &c.lease, &c.retention, &c.unknown, &c.maxRecords, maxInline, &c.holder}
	return c
}

// sized returns a holder as in the record: its size in 3 digits, and the holder, of which
// store.MaxHolder bytes are kept.
func sized(holder string) string {
	holder = holder[:min(len(holder), store.MaxHolder)]
	var room [3 + store.MaxHolder]byte
	return string(append(appendDigits(room[:0], len(holder), 3), holder...))
}

// appendDigits appends the last digits of a number that is not negative, padded with zeros.
func appendDigits(text []byte, n, digits int) []byte {
	for range digits {
		text = append(text, '0')
	}
	for at := range digits {
		text[len(text)-1-at] += byte(n % 10)
		n /= 10
	}
	return text
}

// beginReply is a reply to begin, which may omit the data of a result.
type beginReply struct {
	store.BeginReply
	bytes int // of the result, also if its data is omitted
}

// readResult returns the data of a result that a reply has omitted. A settled record does not
// change, but may have expired since: then the error matches store.ErrUnavailable.
func (s *Store) readResult(ctx context.Context, ref *store.OperationRef, of beginReply) ([]byte, error) {
	key := s.recordKey(ref)
	read := script.Command{Operation: opReadResult, Bytes: of.bytes}
	return script.Do(ctx, s.redis.Node(ctx, key), read, func(ctx context.Context) ([]byte, error) {
		if err := script.Sent(ctx); err != nil { // starts the time for the reply
			return nil, err
		}
		record, err := s.client.GetRange(ctx, key, 0, -1).Bytes()
		if err == nil && len(record) < recordHead+of.bytes {
			err = store.Unavailable(store.OtherCause, "redis: the record has expired while it was read")
		}
		if err != nil {
			return nil, err
		}
		return record[len(record)-of.bytes:], nil
	})
}

// recordHead is the size of a record's head in bytes, without the holder.
const recordHead = 162

var outcomes = map[string]store.BeginOutcome{
	"started": store.Started, "reconcile": store.ToReconcile, "settled": store.Settled, "busy": store.Busy,
	"mismatched": store.Mismatched, "undecided": store.Undecided, "refused": store.Refused, "full": store.ScopeFull,
}

// settledHead is the size in bytes of the fields before the size of a result: the state, the number
// of the attempt, and the status.
const settledHead = 1 + 8 + 4

// readBeginReply reads the reply of begin_operation.lua.
func readBeginReply(reply any) (b beginReply, err error) {
	switch reply := reply.(type) { // a list costs allocations
	case int64:
		b.Outcome, b.Number = store.Started, int(reply)
		return b, nil
	case string:
		return readSettled(reply)
	}
	r := script.Fields(reply)
	outcome, known := outcomes[r.Text()]
	b.Outcome, b.Number = outcome, int(r.Number())
	switch outcome {
	case store.Started, store.ToReconcile:
		if len(r.Left) > 0 { // it took over, or the scope was added up
			steps, ok := readSteps(r.Text())
			known = known && ok
			b.Steps, b.Effects = steps, effectsOf(r.Text())
		}
		if len(r.Left) > 0 {
			b.Records = int(r.Number())
		}
	case store.Busy, store.ScopeFull:
		b.Remaining = r.Micros()
	case store.Settled:
		b.State = store.Unknown
	}
	if !known || r.Err != nil || len(r.Left) > 0 {
		return beginReply{}, script.ErrOddReply
	}
	return b, nil
}

// readSettled reads the reply of begin_operation.lua for a settled record: the fields of
// settledHead, the size of the result, a colon, and the data unless it is omitted.
func readSettled(text string) (b beginReply, err error) {
	head, data, ok := strings.Cut(text, ":")
	if !ok || len(head) <= settledHead {
		return b, script.ErrOddReply
	}
	var r script.Reader
	b.Outcome, b.State = store.Settled, recordStates[head[:1]]
	b.Number, b.Status, b.bytes = int(r.Parse(head[1:9])), int(r.Parse(head[9:settledHead])), int(r.Parse(head[settledHead:]))
	if r.Err != nil || b.State != store.Completed && b.State != store.NotRetained {
		return beginReply{}, script.ErrOddReply
	}
	b.Data = []byte(data)
	return b, nil
}

var (
	recordStates = map[string]store.RecordState{
		"F": store.InFlight, "R": store.Reconciling, "C": store.Completed, "N": store.NotRetained, "U": store.Unknown,
	}
	letters = map[store.RecordState]string{store.Completed: "C", store.NotRetained: "N", store.Unknown: "U"}
)

// SettleOperation implements store.Records: one script call. If the server's memory is full, a
// result is settled as not retained with a second one.
func (s *Store) SettleOperation(ctx context.Context, req store.SettleRequest) (bool, error) {
	letter, ok := letters[req.State]
	if !ok {
		return false, fmt.Errorf("redisstore: SettleOperation: state %d settles nothing", req.State)
	}
	if req.State != store.Completed {
		return s.settle(ctx, settleSmall, &req, letter, nil)
	}
	settled, err := s.settle(ctx, settleOperation, &req, letter, req.Data)
	if redisfault.IsOutOfMemory(err) {
		settled, err = s.settle(ctx, settleSmall, &req, letters[store.NotRetained], nil)
	}
	return settled, err
}

func (s *Store) settle(ctx context.Context, sc *script.Script, req *store.SettleRequest, letter string, data []byte) (bool, error) {
	c := &settleCall{
		keys:  s.operationKeys(&req.OperationRef, "", true),
		owner: req.Owner, fingerprint: req.Fingerprint, letter: letter, holder: sized(req.Holder),
		retention: req.Retention.Milliseconds(), maxBytes: int64(req.MaxBytes),
	}
	var room [44]byte
	text := appendDigits(room[:0], req.Number, 8)
	c.head = string(appendDigits(appendDigits(text, 0, 32), req.Status, 4))
	c.args = [...]any{&c.owner, &c.fingerprint, &c.letter, &c.head, &c.retention, data, &c.maxBytes, &c.holder}
	return s.finish(ctx, opSettleOperation, sc.Call(c.keys.list(), c.args[:]...))
}

// settleCall has the arguments of a call in one allocation: see acquireCall.
type settleCall struct {
	keys                                     operationKeys
	owner, fingerprint, letter, head, holder string
	retention, maxBytes                      int64
	args                                     [8]any
}

// AbandonOperation implements store.Records: one script call.
func (s *Store) AbandonOperation(ctx context.Context, ref store.AttemptRef) (bool, error) {
	keys := s.operationKeys(&ref.OperationRef, ref.Owner, true)
	return s.finish(ctx, opSettleOperation, abandonOperation.Call(keys.list(), &ref.Owner, abandonedFor.Milliseconds()))
}

// MarkOperation implements store.Records: one script call.
func (s *Store) MarkOperation(ctx context.Context, req store.MarkRequest) (bool, error) {
	args := []any{&req.Owner, letterOf[req.Effects], fmt.Sprintf("%010d", min(req.Seq, store.MaxSeq))}
	return s.finish(ctx, opSettleOperation, markOperation.Call([]string{s.recordKey(&req.OperationRef)}, args...))
}

// effectsOf returns the effects that a letter stands for, and store.MayHaveEffects for an unknown
// one.
func effectsOf(letter string) store.Effects {
	for effects, known := range letterOf {
		if letter == known {
			return effects
		}
	}
	return store.MayHaveEffects
}

var letterOf = map[store.Effects]string{store.NoEffects: "0", store.MayHaveEffects: "1", store.EffectsInSteps: "2"}

// RecordStep implements store.StepRecords: one script call.
func (s *Store) RecordStep(ctx context.Context, req store.StepRequest) (bool, error) {
	step := fmt.Sprintf("%03d%07d%s%s", len(req.Name), len(req.Data), req.Name, req.Data)
	call := recordStep.Call([]string{s.recordKey(&req.OperationRef)}, &req.Owner, req.Name, step, store.MaxSteps)
	st := script.Step{Call: call, Operation: opSettleOperation, Urgency: script.Finishing}
	n, err := script.Run(ctx, s.redis, st, func(r script.Reply) (int, error) { return script.Int(r.Value) })
	if err == nil && n < 0 {
		return false, fmt.Errorf("%w: an operation has at most %d steps", store.ErrFull, store.MaxSteps)
	}
	return n == 1, err
}

// readSteps returns the steps in the text of a record. It reports false if it cannot be read.
func readSteps(text string) (steps []store.Step, ok bool) {
	for len(text) > 0 {
		if len(text) < 10 {
			return nil, false
		}
		name, err1 := strconv.ParseUint(text[:3], 10, 16)
		data, err2 := strconv.ParseUint(text[3:10], 10, 32)
		if text = text[10:]; err1 != nil || err2 != nil || uint64(len(text)) < name+data {
			return nil, false
		}
		steps = append(steps, store.Step{Name: text[:name], Data: []byte(text[name : name+data])})
		text = text[name+data:]
	}
	return steps, true
}

// RenewOperations implements store.Records: one pipeline for each hundred.
func (s *Store) RenewOperations(ctx context.Context, reqs []store.RenewRequest) ([]bool, error) {
	calls := make([]script.Call, len(reqs))
	for i := range reqs {
		r := &reqs[i]
		keys := s.operationKeys(&r.OperationRef, "", false)
		calls[i] = renewOperation.Call(keys.list(), &r.Owner, r.Lease.Microseconds(), r.Retention.Milliseconds())
	}
	return s.finishEach(ctx, opRenewOperations, calls)
}
