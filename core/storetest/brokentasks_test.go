package storetest_test

import (
	"context"
	"crypto/rand"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// brokenTasks are stores that break a promise about delayed tasks.
var brokenTasks = map[string]badTasks{
	"takes tasks before they are due":          {put: func(req *store.PutTaskRequest) { req.After = 0 }},
	"takes tasks a tenth too early":            {put: func(req *store.PutTaskRequest) { req.After -= req.After / 10 }},
	"keeps a payload of a fixed size":          {put: func(req *store.PutTaskRequest) { req.Payload = req.Payload[:min(len(req.Payload), 8)] }},
	"has one queue":                            {put: func(req *store.PutTaskRequest) { req.Queue = "q" }, take: func(req *store.TakeTasksRequest) { req.Queue = "q" }},
	"does not bound a queue":                   {put: func(req *store.PutTaskRequest) { req.MaxTasks = 0 }},
	"moves what is to be kept":                 {put: func(req *store.PutTaskRequest) { req.Keep = false }},
	"keeps what is to be moved":                {put: func(req *store.PutTaskRequest) { req.Keep = true }},
	"forgets that a put may have run":          {put: func(req *store.PutTaskRequest) { req.Repeated = false }},
	"takes a repeat of a put for another":      {put: func(req *store.PutTaskRequest) { req.ID = newID() }},
	"takes a repeat of a cancel for another":   {cancel: func(req *store.CancelTaskRequest) { req.ID = newID() }},
	"cancels any task of a key":                {cancel: func(req *store.CancelTaskRequest) { req.Task = "" }},
	"takes more than Max":                      {take: func(req *store.TakeTasksRequest) { req.Max++ }},
	"takes one task at a time":                 {take: func(req *store.TakeTasksRequest) { req.Max = 1 }},
	"gives leases that never end":              {take: func(req *store.TakeTasksRequest) { req.Lease = time.Hour }},
	"gives half the lease that it says":        {take: halve, taken: func(reply *store.TakeTasksReply) { each(reply, func(t *store.TakenTask) { t.TTL *= 2 }) }},
	"renews for half the lease":                {renewal: func(ref *store.TaskRef) { ref.Lease /= 2 }},
	"says nothing of a holder":                 {take: func(req *store.TakeTasksRequest) { req.Holder = "" }},
	"says that nothing is due later":           {taken: func(reply *store.TakeTasksReply) { reply.Next = -1 }},
	"is late by the age of the store":          {taken: func(reply *store.TakeTasksReply) { each(reply, func(t *store.TakenTask) { t.Late += time.Hour }) }},
	"repeats a fence":                          {taken: func(reply *store.TakeTasksReply) { each(reply, func(t *store.TakenTask) { t.Fence = 1 }) }},
	"counts no attempts":                       {taken: func(reply *store.TakeTasksReply) { each(reply, func(t *store.TakenTask) { t.Attempt = 1 }) }},
	"renews nothing":                           {renew: func(*store.TaskRef) bool { return false }},
	"settles for the last owner":               {settle: func(b *badTasks, req *store.SettleTaskRequest) { req.Owner = b.owner(req) }},
	"does not know a repeat of a settlement":   {settle: func(_ *badTasks, req *store.SettleTaskRequest) { req.Repeated = false }},
	"takes every settlement for a repeat":      {settle: func(_ *badTasks, req *store.SettleTaskRequest) { req.Repeated = true }},
	"counts uncounted attempts":                {settle: func(_ *badTasks, req *store.SettleTaskRequest) { req.Uncounted = false }},
	"counts no attempt":                        {settle: func(_ *badTasks, req *store.SettleTaskRequest) { req.Uncounted = true }},
	"drops what is to be buried":               {settle: func(_ *badTasks, req *store.SettleTaskRequest) { req.How = min(req.How, store.TaskAgain) }},
	"buries forever":                           {settle: func(_ *badTasks, req *store.SettleTaskRequest) { req.After = max(req.After, time.Hour) }},
	"runs a task that failed at once":          {settle: func(_ *badTasks, req *store.SettleTaskRequest) { keepsOnly(req) }},
	"forgets the reason":                       {settle: func(_ *badTasks, req *store.SettleTaskRequest) { req.Reason = "" }},
	"revives a task of any ID":                 {revive: func(b *badTasks, ref *store.TaskRef) { ref.ID = b.id(ref) }},
	"prevents what runs":                       {cancelled: func(o store.CancelOutcome) store.CancelOutcome { return min(o, store.TaskPrevented) }},
	"says that every cancelled task had begun": {cancelled: func(o store.CancelOutcome) store.CancelOutcome { return max(o, store.TaskEnded) }},
	"wakes nobody":                             {deaf: true},
	"lists what is buried with the others":     {lists: true},
}

func each(reply *store.TakeTasksReply, change func(*store.TakenTask)) {
	for i := range reply.Tasks {
		change(&reply.Tasks[i])
	}
}

func halve(req *store.TakeTasksRequest) { req.Lease = min(req.Lease, store.FirstTaskLease) / 2 }

func keepsOnly(req *store.SettleTaskRequest) {
	if req.How == store.TaskAgain {
		req.After = 0
	}
}

// newID returns another ID.
func newID() string { return rand.Text()[:22] }

// badTasks is a store that breaks a promise in the functions that it has.
type badTasks struct {
	store.Store
	owners *sync.Map // the last owner of a task, and the last ID of a buried one, by key

	put       func(*store.PutTaskRequest)
	cancel    func(*store.CancelTaskRequest)
	cancelled func(store.CancelOutcome) store.CancelOutcome
	take      func(*store.TakeTasksRequest)
	taken     func(*store.TakeTasksReply)
	renewal   func(*store.TaskRef)
	renew     func(*store.TaskRef) bool
	settle    func(*badTasks, *store.SettleTaskRequest)
	revive    func(*badTasks, *store.TaskRef)
	deaf      bool // no put ends a wait
	lists     bool // all tasks
}

func (b *badTasks) owner(req *store.SettleTaskRequest) string {
	if owner, ok := b.owners.Load(req.Queue + req.Key); ok {
		return owner.(string)
	}
	return req.Owner
}

func (b *badTasks) id(ref *store.TaskRef) string {
	if record, found, err := b.InspectTask(context.Background(), ref.Queue, ref.Key); err == nil && found {
		return record.ID
	}
	return ref.ID
}

func (b badTasks) PutTask(ctx context.Context, req store.PutTaskRequest) (store.PutTaskReply, error) {
	if b.put != nil {
		b.put(&req)
	}
	return b.Store.PutTask(ctx, req)
}

func (b badTasks) CancelTask(ctx context.Context, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	if b.cancel != nil {
		b.cancel(&req)
	}
	outcome, err := b.Store.CancelTask(ctx, req)
	if b.cancelled != nil && err == nil {
		outcome = b.cancelled(outcome)
	}
	return outcome, err
}

func (b badTasks) TakeTasks(ctx context.Context, req store.TakeTasksRequest) (store.TakeTasksReply, error) {
	if b.take != nil {
		b.take(&req)
	}
	reply, err := b.Store.TakeTasks(ctx, req)
	if b.taken != nil {
		b.taken(&reply)
	}
	for _, t := range reply.Tasks {
		b.owners.Store(req.Queue+t.Key, req.Owner)
	}
	return reply, err
}

func (b badTasks) AwaitTasks(ctx context.Context, queue string, in time.Duration) error {
	if b.deaf {
		<-ctx.Done()
		return ctx.Err()
	}
	return b.Store.AwaitTasks(ctx, queue, in)
}

func (b badTasks) RenewTasks(ctx context.Context, refs []store.TaskRef) ([]bool, error) {
	refs = slices.Clone(refs)
	for i := range refs {
		if b.renewal != nil {
			b.renewal(&refs[i])
		}
	}
	owned, err := b.Store.RenewTasks(ctx, refs)
	for i := range owned {
		if b.renew != nil {
			owned[i] = b.renew(&refs[i])
		}
	}
	return owned, err
}

func (b badTasks) SettleTasks(ctx context.Context, reqs []store.SettleTaskRequest) ([]bool, error) {
	reqs = slices.Clone(reqs)
	for i := range reqs {
		if b.settle != nil {
			b.settle(&b, &reqs[i])
		}
	}
	return b.Store.SettleTasks(ctx, reqs)
}

func (b badTasks) ReviveTask(ctx context.Context, ref store.TaskRef) (bool, error) {
	if b.revive != nil {
		b.revive(&b, &ref)
	}
	return b.Store.ReviveTask(ctx, ref)
}

func (b badTasks) ListTasks(ctx context.Context, queue string, buried bool) iter.Seq2[store.TaskRecord, error] {
	if !b.lists {
		return b.Store.ListTasks(ctx, queue, buried)
	}
	return func(yield func(store.TaskRecord, error) bool) {
		for _, buried := range []bool{true, false} {
			for record, err := range b.Store.ListTasks(ctx, queue, buried) {
				if !yield(record, err) {
					return
				}
			}
		}
	}
}

func init() {
	for name, b := range brokenTasks {
		broken["delays: "+name] = func(s store.Store) store.Store {
			b.Store, b.owners = s, new(sync.Map)
			return b
		}
	}
}
