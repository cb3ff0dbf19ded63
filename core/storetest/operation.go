package storetest

import (
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// op is the operation of a test.
type op struct {
	t  *testing.T
	h  Harness[store.Records]
	id string
	fp string

	guard      string
	number     int    // of the attempt that settles the operation
	scope      string // or empty
	maxRecords int
	maxBytes   int
	retention  time.Duration
}

func newOp(t *testing.T, h Harness[store.Records]) op {
	id := unique("op")
	return op{t: t, h: h, id: id[len(id)-22:], fp: strings.Repeat("f", 43), guard: "orders", number: 1, retention: time.Hour}
}

func (o op) ref(owner string) store.AttemptRef {
	return store.AttemptRef{OperationRef: o.operation(), Owner: owner}
}

func (o op) operation() store.OperationRef {
	return store.OperationRef{Guard: o.guard, Scope: o.scope, ID: o.id}
}

func newOwner() string { return unique("owner")[:22] }

func (o op) begin(owner string, lease time.Duration, rerun bool) store.BeginReply {
	o.t.Helper()
	reply, err := o.h.Store.BeginOperation(background(), store.BeginRequest{
		AttemptRef: o.ref(owner), Fingerprint: o.fp, Lease: lease, Retention: o.retention, Rerun: rerun,
		MaxRecords: o.maxRecords,
	})
	if err != nil {
		o.t.Fatalf("BeginOperation: %v", err)
	}
	return reply
}

func (o op) want(reply store.BeginReply, outcome store.BeginOutcome, number int) {
	o.t.Helper()
	if reply.Outcome != outcome || reply.Number != number {
		o.t.Fatalf("got outcome %d of attempt %d, want outcome %d of attempt %d: %+v",
			reply.Outcome, reply.Number, outcome, number, reply)
	}
}

func (o op) started(owner string, lease time.Duration, rerun bool, number int) {
	o.t.Helper()
	o.want(o.begin(owner, lease, rerun), store.Started, number)
}

// dies begins an attempt and lets its lease end.
func (o op) dies(owner string, rerun bool, number int) {
	o.t.Helper()
	o.started(owner, 20*time.Millisecond, rerun, number)
	o.h.Advance(30 * time.Millisecond)
}

func (o op) request(owner string, state store.RecordState, data []byte) store.SettleRequest {
	return store.SettleRequest{
		AttemptRef: o.ref(owner), Fingerprint: o.fp, Number: o.number, State: state, Status: 201, Data: data,
		Retention: o.retention, MaxBytes: o.maxBytes,
	}
}

func (o op) settle(owner string, state store.RecordState, data []byte, want bool) {
	o.t.Helper()
	owned, err := o.h.Store.SettleOperation(background(), o.request(owner, state, data))
	o.check("SettleOperation", owned, err, want)
}

func (o op) abandon(owner string, want bool) {
	o.t.Helper()
	owned, err := o.h.Store.AbandonOperation(background(), o.ref(owner))
	o.check("AbandonOperation", owned, err, want)
}

func (o op) mark(owner string, seq int, effects store.Effects, want bool) {
	o.t.Helper()
	owned, err := o.h.Store.MarkOperation(background(), store.MarkRequest{AttemptRef: o.ref(owner), Effects: effects, Seq: seq})
	o.check("MarkOperation", owned, err, want)
}

func (o op) renew(owner string, lease time.Duration, want bool) {
	o.t.Helper()
	o.check("RenewOperations", o.renews(owner, lease), nil, want)
}

func (o op) renews(owner string, lease time.Duration) bool {
	o.t.Helper()
	held, err := o.h.Store.RenewOperations(background(), []store.RenewRequest{
		{AttemptRef: o.ref(owner), Lease: lease, Retention: o.retention},
	})
	if err != nil || len(held) != 1 {
		o.t.Fatalf("RenewOperations of one answered for %d: %v", len(held), err)
	}
	return held[0]
}

func (o op) check(name string, owned bool, err error, want bool) {
	o.t.Helper()
	if err != nil {
		o.t.Fatalf("%s: %v", name, err)
	}
	if owned != want {
		o.t.Fatalf("%s: owned is %v, want %v", name, owned, want)
	}
}
