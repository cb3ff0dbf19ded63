package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// leaseKind is locks or semaphores.
type leaseKind struct {
	kind, noun string
	listing    func(context.Context, any, string) (inspect.Listing[inspect.Key], error)
	look       func(ctx context.Context, st any, name, key string) (inspect.Key, error)
	find       func(ctx context.Context, st store.Documents, name, keyID string) (inspect.Key, bool, error)
}

var (
	locks   = leaseKind{"lock", "lock", inspect.Locks, inspect.Lock, operate.FindLock}
	permits = leaseKind{"semaphore", "permits", inspect.Semaphores, inspect.Semaphore, operate.FindSemaphore}
)

// leaseView is a lock, or the permits of a semaphore's key.
type leaseView struct {
	operate.Holds

	kind leaseKind
}

func (c *call) leaseView(kind leaseKind, k inspect.Key) *leaseView {
	return &leaseView{operate.HoldsOf(c.args[0], c.shown(k.Key), k), kind}
}

// weight describes a weight: of a lock it is whether it is shared.
func (k leaseKind) weight(n int) string {
	switch {
	case k.kind != "lock":
		return strconv.Itoa(n)
	case n == store.MaxCapacity:
		return "alone"
	default:
		return "shared"
	}
}

func (k leaseKind) weightTitle() string {
	if k.kind == "lock" {
		return "MODE"
	}
	return "WEIGHT"
}

func (v *leaseView) text(p printer) {
	p.line("%s %s, key %s: %d waiting", v.kind.noun, v.Name, keyText(v.Key), v.Waiting)
	var t table
	if len(v.Holders) > 0 {
		t.add("HOLDER", v.kind.weightTitle(), "HELD FOR", "LEASE", "FENCE")
	}
	for _, h := range v.Holders {
		t.add(quoted(h.Label), v.kind.weight(h.Weight), operate.Short(h.Age), operate.Short(h.Remaining),
			strconv.FormatInt(h.Fence, 10))
	}
	t.print(p)
	t = table{}
	if len(v.Waiters) > 0 {
		t.add("WAITER", v.kind.weightTitle(), "WAITS FOR")
	}
	for _, w := range v.Waiters {
		t.add(quoted(w.Label), v.kind.weight(w.Weight), operate.Short(w.Age))
	}
	t.print(p)
}

// leasesView has the keys of a name that are in use.
type leasesView struct {
	Name  string       `json:"name"`
	Items []*leaseView `json:"items"`
	More  bool         `json:"more"` // there are others

	kind leaseKind
}

func (v *leasesView) text(p printer) {
	if len(v.Items) == 0 {
		p.line("Nothing is in use.")
		return
	}
	var t table
	t.add("KEY", "HOLDER", v.kind.weightTitle(), "HELD FOR", "LEASE", "FENCE", "WAITING")
	for _, one := range v.Items {
		waiting := strconv.Itoa(one.Waiting)
		for _, h := range one.Holders {
			t.add(keyText(one.Key), quoted(h.Label), v.kind.weight(h.Weight),
				operate.Short(h.Age), operate.Short(h.Remaining), strconv.FormatInt(h.Fence, 10), waiting)
		}
		if len(one.Holders) == 0 {
			t.add(keyText(one.Key), "none", "", "", "", "", waiting)
		}
	}
	t.print(p)
	printMore(p, v.More)
}

func printMore(p printer, more bool) {
	if more {
		p.line("There are more: these are the first %d that were found.", inspect.MaxListed)
	}
}

func (k leaseKind) list(ctx context.Context, c *call) error {
	if len(c.args) == 0 {
		return c.names(ctx, k.kind)
	}
	found, err := k.listing(ctx, c.store, c.args[0])
	if err != nil {
		return err
	}
	v := &leasesView{Name: c.args[0], Items: []*leaseView{}, More: found.More, kind: k}
	for _, one := range found.Items {
		v.Items = append(v.Items, c.leaseView(k, one))
	}
	return c.print(v)
}

// at returns the state of a key, or of the one that has an ID. It reports false if it is not in use.
func (k leaseKind) at(ctx context.Context, c *call, key, id string) (inspect.Key, bool, error) {
	if key == "" {
		return k.find(ctx, c.store, c.args[0], id)
	}
	found, err := k.look(ctx, c.store, c.args[0], key)
	found.Key = key
	return found, len(found.Holders) > 0 || found.Waiting > 0, err
}

func (k leaseKind) show(ctx context.Context, c *call) error {
	key, id, err := c.key()
	if err != nil {
		return err
	}
	found, inUse, err := k.at(ctx, c, key, id)
	if err != nil {
		return err
	}
	if !inUse {
		return c.nothing("It is not in use: it has neither holders nor waiters.")
	}
	return c.print(c.leaseView(k, found))
}

// nothing ends a command whose object does not exist.
func (c *call) nothing(text string) error {
	c.errs.line("%s", text)
	return errFound
}

func (k leaseKind) release(ctx context.Context, c *call) error {
	fence, err := fenceOf(c.fence)
	if err != nil {
		return err
	}
	key, id, err := c.key()
	if err != nil {
		return err
	}
	found, inUse, err := k.at(ctx, c, key, id)
	if err != nil {
		return err
	}
	seen := c.leaseView(k, found)
	if c.fence == "" {
		if fence, err = c.onlyFence(seen); err != nil {
			return err
		}
	}
	gone := "" // a key that is known may have come into use since
	if key == "" && !inUse {
		gone = id
	}
	return c.carryOut(ctx, deed{
		Action: operate.Action{
			Name: c.args[0], Key: cmp.Or(key, found.Key), Fence: fence, Gone: gone,
			Detail: fmt.Sprintf("fence %d", fence),
		},
		what: fmt.Sprintf("release %s %s, key %s, fence %d", k.noun, c.args[0], c.named(key, id), fence),
		seen: seen,
		now: func(ctx context.Context) (view, error) {
			found, inUse, err := k.at(ctx, c, key, id)
			if err != nil || !inUse {
				return nil, err
			}
			return c.leaseView(k, found), nil
		},
	})
}

// named returns what messages call a key.
func (c *call) named(key, id string) string {
	if key == "" {
		return quoted(id)
	}
	return keyText(c.shown(key))
}

// onlyFence returns the fence of the only hold, which the operator is going to be shown.
func (c *call) onlyFence(seen *leaseView) (int64, error) {
	switch len(seen.Holders) {
	case 0:
		return 0, c.nothing("There is no hold: nothing is left to release.")
	case 1:
		return seen.Holders[0].Fence, nil
	}
	seen.text(c.errs)
	return 0, misused("several hold it: say -fence")
}

// fenceOf reads a fence, 0 if there is none.
func fenceOf(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, misused("-fence: %q is no fence", text)
	}
	return n, nil
}
