package middleware

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

// RequestID distinguishes a request from another one that its handler sends within the process,
// with the same context. Method is empty in gRPC, where Path is the full method. Key is the
// idempotency key as it was sent.
type RequestID struct{ Method, Path, Key string }

// Mark is the context of a request behind a middleware. Inner middleware find the outer ones of the
// request in it. It is part of a protocol's exchange, with the request's ID, to save an allocation.
type Mark struct {
	context.Context
	ID RequestID
	// Chain is the framework's context, in a framework that can run its chain again with the same one;
	// nil in others.
	Chain any

	mechanism, name string
	key             string       // of a lock or a permit
	overload        bool         // a permit that protects the server: each answer needs one
	guard           *guard.Guard // nil for a lock or a permit
	op              guard.Operation
}

type markKey struct{}

// Value implements context.Context.
func (m *Mark) Value(key any) any {
	if key == (markKey{}) {
		return m
	}
	return m.Context.Value(key)
}

func markIn(ctx context.Context) *Mark {
	m, _ := ctx.Value(markKey{}).(*Mark)
	return m
}

// rightOrder is the order of middleware that the log recommends.
const rightOrder = "tracing, CORS, limit by address, authentication, limit by user, idempotency, exclusive, concurrency"

// order finds mistakes in the order of middleware, and logs each of them once.
type order struct{ heldBefore, guardedBefore atomic.Bool }

// check examines the middleware that a request with this mark has passed before m. It returns a
// denial if the same guard guards the request already, since it would wait for itself.
func (m *Idempotency) check(ctx context.Context, op guard.Operation, mark *Mark) *policy.Denial {
	for outer := markIn(ctx); outer != nil; outer = markIn(outer.Context) {
		if outer.ID != mark.ID {
			continue
		}
		switch {
		case outer.overload:
		case outer.guard == nil:
			if !m.order.heldBefore.Swap(true) {
				m.logger.WarnContext(ctx, "lockkeeper: a lock or a permit is acquired in front of idempotency, so replays need it too",
					"held", outer.mechanism, "name", outer.name, "order", rightOrder)
			}
		case outer.op.Key != op.Key:
		case outer.guard.Name() == m.Guard.Name() && outer.op.Scope == op.Scope:
			err := fmt.Errorf("middleware: the guard %q is in one chain twice", m.Guard.Name())
			m.twiceInChain(ctx, err)
			return &policy.Denial{Reason: policy.InternalError, Err: err}
		default:
			if !m.order.guardedBefore.Swap(true) {
				m.logger.WarnContext(ctx, "lockkeeper: two guards are in one chain", "other", outer.name)
			}
		}
	}
	return nil
}

// guarded reports whether a guard has the request with this ID, in this context. A request that a
// handler sends within the process also has the guards of the handler's request in its context.
func guarded(ctx context.Context, id RequestID) bool {
	for outer := markIn(ctx); outer != nil; outer = markIn(outer.Context) {
		if outer.guard != nil && outer.ID == id {
			return true
		}
	}
	return false
}

// Redirected reports whether a handler behind the guard has sent its own request through the chain
// again, as gin's HandleContext does. The running operation is the same one.
func (m *Idempotency) Redirected(ctx context.Context, op guard.Operation, mark *Mark) bool {
	for outer := markIn(ctx); mark.Chain != nil && outer != nil; outer = markIn(outer.Context) {
		if outer.Chain == mark.Chain && outer.ID != mark.ID && outer.guard != nil &&
			outer.guard.Name() == m.Guard.Name() && outer.op.Scope == op.Scope && outer.op.Key == op.Key {
			return true
		}
	}
	return false
}

// in returns the mark as the context of an operation.
func (m *Mark) in(ctx context.Context, g *guard.Guard, op guard.Operation) context.Context {
	m.Context, m.mechanism, m.name, m.guard, m.op = ctx, "idempotency", g.Name(), g, op
	return m
}

// holding returns the mark as the context of a request that holds a key.
func (m *Mark) holding(ctx context.Context, h *Hold, key string) context.Context {
	m.Context, m.mechanism, m.name, m.key, m.overload = ctx, h.kind, h.name, key, h.overload
	return m
}

// holds reports whether the request with this ID holds the key already.
func holds(ctx context.Context, id RequestID, mechanism, name, key string) bool {
	for outer := markIn(ctx); outer != nil; outer = markIn(outer.Context) {
		if outer.guard == nil && outer.ID == id && outer.mechanism == mechanism && outer.name == name && outer.key == key {
			return true
		}
	}
	return false
}
