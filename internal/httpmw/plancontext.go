package httpmw

import (
	"context"
	"sync"
)

// valuer is an adapter of a framework whose contexts have values of their own.
type valuer[C any] interface {
	// Value returns a value of the framework's own context. It returns false if there is none.
	Value(c C, key any) (any, bool)
}

// planContext is the context of a decision. A PlanFunc finds in it the values that earlier
// middleware have put into the framework's own context under a string, and all values of the
// request's context. Frameworks reuse their contexts, so it has only the request's values once the
// decision is made.
//
// Every decision of a limiter whose plan may depend on the request has one. It contains the header
// fields, and costs no allocation besides theirs.
type planContext[C any] struct {
	context.Context // the request's

	mu     sync.Mutex // guards the following fields
	values valuer[C]  // nil after the decision, or if the framework has no values
	c      C

	fields [2]string
}

// newPlanContext returns the context of a decision about a request.
func newPlanContext[C any](b *base[C], c C) *planContext[C] {
	return &planContext[C]{Context: b.Request(c).Context(), values: b.values, c: c}
}

// Value implements context.Context.
func (p *planContext[C]) Value(key any) any {
	if name, ok := key.(string); ok {
		if value, ok := p.own(name); ok {
			return value
		}
	}
	return p.Context.Value(key)
}

func (p *planContext[C]) own(name string) (any, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.values == nil {
		return nil, false
	}
	return p.values.Value(p.c, name)
}

// end is called after the decision.
func (p *planContext[C]) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	var none C
	p.values, p.c = nil, none
}
