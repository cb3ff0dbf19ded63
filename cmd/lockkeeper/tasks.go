package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// taskView is a delayed task.
type taskView struct{ operate.Task }

func (c *call) taskView(t inspect.DelayedTask) *taskView {
	return &taskView{operate.TaskOf(c.args[0], c.shown(t.Key), t)}
}

// when describes the time of a task.
func (v *taskView) when() string {
	switch {
	case v.State == operate.Runs:
		return "lease " + operate.Short(v.Lease)
	case v.State == operate.Buried:
		return "buried for " + operate.Short(v.Age)
	case v.Due < 0:
		return "due for " + operate.Short(-v.Due)
	default:
		return "due in " + operate.Short(v.Due)
	}
}

// note describes who runs a task, or why it is buried.
func (v *taskView) note() string {
	var notes []string
	for _, text := range []string{v.Reason, v.Holder} {
		if text != "" {
			notes = append(notes, quoted(text))
		}
	}
	if v.Follows {
		notes = append(notes, "another follows")
	}
	return strings.Join(notes, ", ")
}

func (v *taskView) cells() []string {
	return []string{keyText(v.Key), v.ID, v.State, v.when(), strconv.Itoa(v.Attempt), v.note()}
}

func titlesOfTasks() []string { return []string{"KEY", "TASK", "STATE", "WHEN", "ATTEMPT", "NOTE"} }

func (v *taskView) text(p printer) {
	var t table
	t.add(titlesOfTasks()...)
	t.add(v.cells()...)
	t.print(p)
}

// tasksView has the tasks of a queue.
type tasksView struct {
	Queue      string        `json:"queue"`
	Waiting    int           `json:"waiting"`
	Running    int           `json:"running"`
	Buried     int           `json:"buried"`
	Oldest     time.Duration `json:"oldest_due_ns"` // for how long the first one has been due
	Dead       []*taskView   `json:"buried_tasks"`
	MoreBuried bool          `json:"more_buried"`
	Items      []*taskView   `json:"tasks"`
	More       bool          `json:"more"`
}

func (v *tasksView) text(p printer) {
	p.line("queue %s: %d waiting, %d running, %d buried", v.Queue, v.Waiting, v.Running, v.Buried)
	if v.Oldest > 0 {
		p.line("One has been due for %s.", operate.Short(v.Oldest))
	}
	if len(v.Dead)+len(v.Items) == 0 {
		return
	}
	var t table
	t.add(titlesOfTasks()...)
	for _, one := range slices.Concat(v.Dead, v.Items) {
		t.add(one.cells()...)
	}
	t.print(p)
	printMore(p, v.More || v.MoreBuried)
}

func listTasks(ctx context.Context, c *call) error {
	if len(c.args) == 0 {
		return c.names(ctx, "delay")
	}
	queue := c.args[0]
	counts, err := inspect.Queue(ctx, c.store, queue)
	if err != nil {
		return err
	}
	buried, err := inspect.Buried(ctx, c.store, queue)
	if err != nil {
		return err
	}
	others, err := inspect.Tasks(ctx, c.store, queue)
	if err != nil {
		return err
	}
	return c.print(&tasksView{
		Queue: queue, Waiting: counts.Waiting, Running: counts.Running, Buried: counts.Buried,
		Oldest: max(counts.Oldest, 0),
		Dead:   c.taskViews(buried.Items), MoreBuried: buried.More, Items: c.taskViews(others.Items), More: others.More,
	})
}

func (c *call) taskViews(tasks []inspect.DelayedTask) []*taskView {
	views := []*taskView{}
	for _, t := range tasks {
		views = append(views, c.taskView(t))
	}
	return views
}

// findTask returns the task of a key or, if that is empty, of the key that has an ID. It reports
// false if there is none.
func (c *call) findTask(ctx context.Context, key, id string) (inspect.DelayedTask, bool, error) {
	if key == "" {
		return operate.FindTask(ctx, c.store, c.args[0], id)
	}
	return inspect.Task(ctx, c.store, c.args[0], key)
}

// actOnTask cancels or revives a task, by the command's kind.
func actOnTask(ctx context.Context, c *call) error {
	key, id, err := c.key()
	if err != nil {
		return err
	}
	found, exists, err := c.findTask(ctx, key, id)
	if err != nil {
		return err
	}
	var seen view
	version := c.task
	switch {
	case exists:
		seen, key = c.taskView(found), found.Key
		if version == "" {
			version = found.TaskID
		}
	case version == "":
		return c.nothing("There is no such task: it is done, was cancelled, or was never put.")
	}
	gone := ""
	if key == "" {
		gone = id
	}
	return c.carryOut(ctx, deed{
		Action: operate.Action{Name: c.args[0], Key: key, Version: version, Gone: gone},
		what:   fmt.Sprintf("%s task %s of queue %s, key %s", c.words()[1], version, c.args[0], c.named(key, id)),
		seen:   seen,
		now: func(ctx context.Context) (view, error) {
			found, exists, err := c.findTask(ctx, key, id)
			if err != nil || !exists {
				return nil, err
			}
			return c.taskView(found), nil
		},
	})
}
