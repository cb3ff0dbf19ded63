package console

import (
	"context"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// listData is the content of a page that lists what a mechanism has in the store.
type listData[T any] struct {
	Kind  *kind  `json:"-"`
	Name  string `json:"name"`
	Items []T    `json:"items"`
	More  bool   `json:"more"` // there are others

	Took time.Duration `json:"took_ns"`
}

// holdsData is the content of the page of a lock, or of the permits of a semaphore's key.
type holdsData struct {
	Kind *kind `json:"-"`
	operate.Holds
}

func (q *request) holdsOf(of object, k inspect.Key) holdsData {
	return holdsData{of.kind, operate.HoldsOf(of.name, q.key(k.Key), k)}
}

// Exclusive reports whether a hold is a lock's that is not shared.
func (d *holdsData) Exclusive(h operate.Hold) bool {
	return d.Kind.Kind == "lock" && h.Weight == store.MaxCapacity
}

// listing returns the page that lists what a mechanism has in the store.
func (q *request) listing(of object) (view, error) {
	v := view{title: of.name, template: of.Path, streamed: true}
	switch of.Path {
	case "locks", "permits":
		v.template = "leases"
		v.load = func(ctx context.Context) (any, error) { return q.leases(ctx, of) }
	case "limits":
		v.streamed = false
		v.template = "limit"
		v.load = func(ctx context.Context) (any, error) { return q.limitForm(ctx, of) }
	case "operations":
		v.load = func(ctx context.Context) (any, error) { return q.operations(ctx, of) }
	case "tasks":
		v.load = func(ctx context.Context) (any, error) { return q.tasks(ctx, of) }
	}
	return v, nil
}

func (q *request) leases(ctx context.Context, of object) (any, error) {
	began := time.Now()
	st, err := q.store(ctx, of)
	if err != nil {
		return nil, err
	}
	list := inspect.Locks
	if of.Path == "permits" {
		list = inspect.Semaphores
	}
	found, err := list(ctx, st, of.name)
	d := &listData[holdsData]{Kind: of.kind, Name: of.name, More: found.More, Took: time.Since(began)}
	for _, k := range found.Items {
		d.Items = append(d.Items, q.holdsOf(of, k))
	}
	return d, err
}

// one returns the page of one key, or [errNotFound] for a mechanism whose keys have no pages.
func (q *request) one(of object) (view, error) {
	v := view{title: of.name}
	switch of.Path {
	case "locks", "permits":
		v.template = "lease"
		v.load = func(ctx context.Context) (any, error) {
			k, err := q.findLease(ctx, of)
			d := q.holdsOf(of, k)
			return &d, err
		}
	case "operations":
		v.template = "operation"
		v.load = func(ctx context.Context) (any, error) { return q.operation(ctx, of) }
	case "tasks":
		v.template = "task"
		v.load = func(ctx context.Context) (any, error) {
			t, err := q.findTask(ctx, of)
			return q.taskOf(of, t), err
		}
	default: // keys of limits are looked up by forms alone
		return view{}, errNotFound
	}
	return v, nil
}

// findLease returns the state of the key that has the object's ID, or a problem with status 404 if
// the key is not in use.
func (q *request) findLease(ctx context.Context, of object) (inspect.Key, error) {
	st, err := q.store(ctx, of)
	if err != nil {
		return inspect.Key{}, err
	}
	find := operate.FindLock
	if of.Path == "permits" {
		find = operate.FindSemaphore
	}
	k, found, err := find(ctx, st, of.name, of.id)
	if err == nil && !found {
		err = problem{404, "It is not in use: it has neither holders nor waiters."}
	}
	return k, err
}

// fenceOf returns the fence in a text, or a problem with status 400 if it is not a plain decimal
// number.
func fenceOf(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != text {
		return 0, problem{400, "The fence is a number."}
	}
	return n, nil
}
