package console

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// operationsData is the content of the page of a guard.
type operationsData struct {
	Kind  *kind               `json:"-"`
	Name  string              `json:"name"`
	Items []operate.Operation `json:"unresolved"`
	More  bool                `json:"more"`
	Took  time.Duration       `json:"took_ns"`
	Own   bool                `json:"-"` // this process has the guard, so that scope and key can be looked up
}

// operationData is the content of the page of one operation.
type operationData struct {
	Kind *kind             `json:"-"`
	Name string            `json:"name"`
	One  operate.Operation `json:"operation"`
}

func (q *request) operations(ctx context.Context, of object) (any, error) {
	began := time.Now()
	st, err := q.store(ctx, of)
	if err != nil {
		return nil, err
	}
	_, own := inspect.Guard(st, of.name)
	d := &operationsData{Kind: of.kind, Name: of.name, Own: own}
	g, free, err := operate.Guard(st, of.name)
	if err != nil {
		return nil, err
	}
	defer free()
	var found []guard.Record
	for r, err := range g.Unresolved(ctx) {
		if err != nil {
			return d, err
		}
		if d.More = len(found) == inspect.MaxListed; d.More {
			break
		}
		found = append(found, r)
	}
	slices.SortStableFunc(found, func(a, b guard.Record) int { return cmp.Compare(b.Changed, a.Changed) })
	for _, r := range found {
		d.Items = append(d.Items, operate.OperationOf(of.name, r))
	}
	d.Took = time.Since(began)
	return d, nil
}

func (q *request) operation(ctx context.Context, of object) (*operationData, error) {
	st, err := q.store(ctx, of)
	if err != nil {
		return nil, err
	}
	g, free, err := operate.Guard(st, of.name)
	if err != nil {
		return nil, err
	}
	defer free()
	r, err := g.InspectID(ctx, of.id)
	return q.recordOf(of, r, err)
}

func (q *request) recordOf(of object, r guard.Record, err error) (*operationData, error) {
	switch {
	case errors.Is(err, guard.ErrNoRecord):
		return nil, problem{404, "There is no record of it: it has not begun, or its record has expired."}
	case errors.Is(err, guard.ErrInvalidOperation):
		return nil, problem{404, "That is not the ID of an operation."}
	case err != nil:
		return nil, err
	}
	return &operationData{of.kind, of.name, operate.OperationOf(of.name, r)}, nil
}

// lookUpOperation finds an operation by its ID, or by scope and key.
func (q *request) lookUpOperation(ctx context.Context, of object) (any, error) {
	if id := q.form.Get("id"); id != "" {
		of.id = id
		return q.operation(ctx, of)
	}
	st, err := q.store(ctx, of)
	if err != nil {
		return nil, err
	}
	g, own := inspect.Guard(st, of.name)
	if !own {
		return nil, problem{409, "Only a process that has the guard knows the ID of a key. Look it up by its ID."}
	}
	r, err := g.Inspect(ctx, guard.Operation{Scope: q.form.Get("scope"), Key: q.form.Get("key")})
	if errors.Is(err, guard.ErrInvalidOperation) {
		return nil, problem{400, "A key has 1 to 1,024 bytes, and a scope has at most as many."}
	}
	return q.recordOf(of, r, err)
}
