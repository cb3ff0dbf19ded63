package console

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// tasksData is the content of the page of a queue.
type tasksData struct {
	Kind     *kind     `json:"-"`
	Name     string    `json:"name"`
	Waiting  int       `json:"waiting"`
	Running  int       `json:"running"`
	Buried   int       `json:"buried"`
	Oldest   string    `json:"oldest_due,omitempty"`
	Dead     []oneTask `json:"buried_tasks"`
	MoreDead bool      `json:"more_buried"`
	Items    []oneTask `json:"tasks"`
	More     bool      `json:"more"`
	Took     string    `json:"took"`
}

type oneTask struct {
	Kind    *kind    `json:"-"`
	Name    string   `json:"-"` // the queue's
	Key     shownKey `json:"key"`
	ID      string   `json:"id"`
	State   string   `json:"state"`
	Attempt int      `json:"attempt"`
	Due     string   `json:"due,omitempty"` // until it is due, or for how long it has been
	Late    bool     `json:"late,omitempty"`
	Lease   string   `json:"lease,omitempty"`
	Holder  string   `json:"holder,omitempty"`
	Follows bool     `json:"another_follows,omitempty"`
	Reason  string   `json:"reason,omitempty"`
	Age     string   `json:"buried_for,omitempty"`
	Expires string   `json:"expires,omitempty"`
	Bytes   int      `json:"bytes"`
	Fence   int64    `json:"fence,string"`
}

var taskStates = map[store.TaskState]string{
	store.TaskWaiting: "waiting", store.TaskTaken: "running", store.TaskKeptBuried: "buried",
}

func (q *request) taskOf(of object, t inspect.DelayedTask) *oneTask {
	o := &oneTask{
		Kind: of.kind, Name: of.name, Key: q.key(t.Key), ID: t.TaskID, State: taskStates[t.State], Attempt: t.Attempt,
		Holder: operate.OneLine(t.Holder), Follows: t.Follows, Reason: operate.OneLine(t.Reason), Bytes: t.Bytes, Fence: t.Fence,
	}
	switch t.State {
	case store.TaskWaiting:
		o.Due, o.Late = short(max(t.Due, -t.Due)), t.Due < 0
	case store.TaskTaken:
		o.Lease = short(t.Lease)
	case store.TaskKeptBuried:
		o.Age, o.Expires = short(t.Age), short(t.Expires)
	}
	return o
}

func (q *request) tasks(ctx context.Context, of object) (any, error) {
	began := time.Now()
	st, err := q.store(ctx, of)
	if err != nil {
		return nil, err
	}
	counts, err := inspect.Queue(ctx, st, of.name)
	if err != nil {
		return nil, err
	}
	d := &tasksData{Kind: of.kind, Name: of.name, Waiting: counts.Waiting, Running: counts.Running, Buried: counts.Buried}
	if counts.Oldest > 0 {
		d.Oldest = short(counts.Oldest)
	}
	buried, err := inspect.Buried(ctx, st, of.name)
	if err != nil {
		return d, err
	}
	others, err := inspect.Tasks(ctx, st, of.name)
	for _, t := range buried.Items {
		d.Dead = append(d.Dead, *q.taskOf(of, t))
	}
	for _, t := range others.Items {
		d.Items = append(d.Items, *q.taskOf(of, t))
	}
	d.MoreDead, d.More, d.Took = buried.More, others.More, short(time.Since(began))
	return d, err
}

// findTask returns the task of the key that has the object's ID.
func (q *request) findTask(ctx context.Context, of object) (inspect.DelayedTask, error) {
	st, err := q.store(ctx, of)
	if err != nil {
		return inspect.DelayedTask{}, err
	}
	t, found, err := operate.FindTask(ctx, st, of.name, of.id)
	if err == nil && !found {
		err = problem{404, "There is no such task: it is done, was cancelled, or was never put."}
	}
	return t, err
}
