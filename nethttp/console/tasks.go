package console

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// tasksData is the content of the page of a queue.
type tasksData struct {
	Kind     *kind     `json:"-"`
	Name     string    `json:"name"`
	Waiting  int       `json:"waiting"`
	Running  int       `json:"running"`
	Buried   int       `json:"buried"`
	Dead     []oneTask `json:"buried_tasks"`
	MoreDead bool      `json:"more_buried"`
	Items    []oneTask `json:"tasks"`
	More     bool      `json:"more"`

	Oldest time.Duration `json:"oldest_due_ns,omitempty"` // for how long the first one has been due
	Took   time.Duration `json:"took_ns"`
}

// oneTask is a task, on its page or in a list.
type oneTask struct {
	Kind *kind `json:"-"`
	operate.Task
}

// Late is for how long the task has been due; zero if it is not.
func (t *oneTask) Late() time.Duration { return max(-t.Due, 0) }

func (q *request) taskOf(of object, t inspect.DelayedTask) *oneTask {
	return &oneTask{of.kind, operate.TaskOf(of.name, q.key(t.Key), t)}
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
	d := &tasksData{Kind: of.kind, Name: of.name, Waiting: counts.Waiting, Running: counts.Running, Buried: counts.Buried, Oldest: max(counts.Oldest, 0)}
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
	d.MoreDead, d.More, d.Took = buried.More, others.More, time.Since(began)
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
