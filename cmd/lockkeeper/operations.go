package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// operationView is the record of an operation.
type operationView struct{ operate.Operation }

func operationOf(name string, r guard.Record) *operationView {
	return &operationView{operate.OperationOf(name, r)}
}

func (v *operationView) text(p printer) {
	state := string(v.State)
	if v.Unresolved {
		state += ", its outcome is unknown"
	}
	p.line("operation %s of guard %s", v.ID, v.Guard)
	var t table
	t.add("state", state)
	t.add("attempt", strconv.Itoa(v.Attempt)+" of process "+quoted(v.Holder))
	t.add("began", operate.Short(v.Age)+" ago")
	t.add("changed", operate.Short(v.Changed)+" ago")
	if v.Lease > 0 {
		t.add("lease", operate.Short(v.Lease)+" left")
	}
	t.add("kept for", operate.Short(v.Expires))
	if v.Status > 0 {
		t.add("status", fmt.Sprintf("%d, %d bytes", v.Status, v.Size))
	}
	if len(v.Steps) > 0 {
		t.add("steps", quoted(strings.Join(v.Steps, ", ")))
	}
	if v.Trace != "" {
		t.add("trace", v.Trace)
	}
	t.add("version", v.Version)
	t.print(p)
}

// operationsView is the operations of a guard whose outcome is unknown.
type operationsView struct {
	Guard string           `json:"guard"`
	Items []*operationView `json:"unresolved"`
	More  bool             `json:"more"`
}

func (v *operationsView) text(p printer) {
	if len(v.Items) == 0 {
		p.line("No outcome is unknown.")
		return
	}
	var t table
	t.add("OPERATION", "STATE", "SINCE", "ATTEMPT", "PROCESS", "KEPT FOR")
	for _, o := range v.Items {
		t.add(o.ID, string(o.State), operate.Short(o.Changed), strconv.Itoa(o.Attempt), quoted(o.Holder),
			operate.Short(o.Expires))
	}
	t.print(p)
	printMore(p, v.More)
}

func listOperations(ctx context.Context, c *call) error {
	if len(c.args) == 0 {
		return c.names(ctx, "idempotency")
	}
	g, free, err := operate.Guard(c.store, c.args[0])
	if err != nil {
		return err
	}
	defer free()
	v := &operationsView{Guard: c.args[0], Items: []*operationView{}}
	for r, err := range g.Unresolved(ctx) {
		if err != nil {
			return err
		}
		if v.More = len(v.Items) == inspect.MaxListed; v.More {
			break
		}
		v.Items = append(v.Items, operationOf(c.args[0], r))
	}
	slices.SortStableFunc(v.Items, func(a, b *operationView) int { return cmp.Compare(b.Changed, a.Changed) })
	return c.print(v)
}

func showOperation(ctx context.Context, c *call) error {
	v, err := c.operation(ctx)
	switch {
	case err != nil:
		return err
	case v == nil:
		return c.nothing("There is no record of it: it has not begun, or its record has expired.")
	}
	return c.print(v)
}

// record returns the record of the operation that has the ID, or the key, of the second argument.
func (c *call) record(ctx context.Context) (r guard.Record, err error) {
	secret, err := readSecret(c.secretFile)
	if err != nil {
		return r, fmt.Errorf("-secret-file: %w", err)
	}
	g, free, err := operate.Guard(c.store, c.args[0], guard.WithSecret(secret))
	if err != nil {
		return r, err
	}
	defer free()
	if c.byKey {
		r, err = c.recordOfKey(ctx, g)
	} else {
		r, err = g.InspectID(ctx, c.args[1])
	}
	if errors.Is(err, guard.ErrInvalidOperation) {
		return r, misused("that is not the ID of an operation, or not a key")
	}
	return r, err
}

func (c *call) recordOfKey(ctx context.Context, g *guard.Guard) (guard.Record, error) {
	key, err := c.literalKey()
	if err != nil {
		return guard.Record{}, err
	}
	return g.Inspect(ctx, guard.Operation{Scope: c.scope, Key: key})
}

// resolutions are the values of -outcome.
var resolutions = map[string]func(status int) (how guard.Resolution, detail string){
	"never-happened": func(int) (guard.Resolution, string) { return guard.NeverHappened(), "never happened" },
	"answer-lost": func(status int) (guard.Resolution, string) {
		return guard.HappenedAnswerLost(status), fmt.Sprintf("happened, answer lost, status %d", status)
	},
}

func resolveOperation(ctx context.Context, c *call) error {
	resolve, ok := resolutions[c.outcome]
	switch {
	case !ok:
		return misused("say -outcome never-happened, or -outcome answer-lost")
	case c.status < 200 || c.status > 599:
		return misused("-status: from 200 to 599")
	}
	how, detail := resolve(c.status)
	seen, err := c.operation(ctx)
	if err != nil {
		return err
	}
	version := c.version
	if version == "" {
		if seen == nil || !seen.(*operationView).Unresolved {
			return c.nothing("Its outcome is known, or an attempt is in flight: nothing is left to resolve.")
		}
		version = seen.(*operationView).Version
	}
	return c.carryOut(ctx, deed{
		Action: operate.Action{Name: c.args[0], Key: c.args[1], Version: version, Resolve: &how, Detail: detail},
		what:   fmt.Sprintf("resolve operation %s of guard %s: %s", c.args[1], c.args[0], detail),
		seen:   seen,
		now:    c.operation,
	})
}

// operation returns the operation of the arguments, or nil if there is no record of it.
func (c *call) operation(ctx context.Context) (view, error) {
	r, err := c.record(ctx)
	if errors.Is(err, guard.ErrNoRecord) {
		return nil, nil
	}
	return operationOf(c.args[0], r), err
}
