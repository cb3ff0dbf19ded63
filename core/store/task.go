package store

import (
	"context"
	"iter"
	"math"
	"time"
)

// Delays keeps delayed tasks. core/memstore, core/redisstore and core/pgstore implement it;
// storetest.Delays is the suite that every implementation must pass.
//
// A queue has at most one task of a key. A task waits until it is due; a take gives it to an owner
// under a lease; a settlement ends it, makes it wait again, or buries it. A task whose lease has
// ended is due at once. A task that is put while the key's task runs follows it: it waits from
// the end of the running one, or of its lease, and takes its place. A buried task is kept beside
// the key's next one.
//
// A put has an ID, which becomes the task's: a moved task has a new one, and the attempts at a task
// have the same one. A take has an Owner, a random string of 22 characters that is never used
// again. ID, owner and lease identify an attempt: its steps change nothing once the lease has
// ended, or another owner has the task.
//
// A step that meets a record that cannot be read buries it with the reason "damaged", and the store
// logs that: no task is dropped.
//
// Every method but AwaitTasks is one atomic step for each task, and may be sent twice. Times are
// durations, counted by the store's own clock. Errors match ErrUnavailable or are the context's.
type Delays interface {
	// PutTask makes a task wait for req.After. An existing task that waits, or whose lease has
	// ended, is moved: the new one takes its place, with no attempts. A running one is followed,
	// and a task that followed it before is replaced. A repeat of a put changes nothing, also after a
	// cancel within the last minute.
	//
	// A queue that has MaxTasks tasks, buried ones counted, takes no task of a further key. A store
	// without room fails with ErrFull.
	PutTask(ctx context.Context, req PutTaskRequest) (PutTaskReply, error)

	// CancelTask removes a task, and the buried one of its key. A running task is not stopped, but
	// no further attempt at it begins, and the task that follows it is removed. The outcome is kept
	// for a minute, for repeats.
	CancelTask(ctx context.Context, req CancelTaskRequest) (CancelOutcome, error)

	// TakeTasks gives up to Max tasks that are due to the owner, the ones that have been due for
	// longest first. Their leases are [FirstTaskLease], or Lease if that is less, until the first
	// renewal.
	TakeTasks(ctx context.Context, req TakeTasksRequest) (TakeTasksReply, error)

	// AwaitTasks blocks until a task of the queue may be due: for in, the Next of a reply, or less
	// if a task is put that is due earlier. It may return nil earlier. A lost push delays it by a
	// few seconds.
	AwaitTasks(ctx context.Context, queue string, in time.Duration) error

	// RenewTasks extends leases, and reports for each whether the owner has the task: never for one
	// whose lease has ended, even if no other worker has it. With an error, the reported ones are
	// owned, and the state of the others is unknown.
	RenewTasks(ctx context.Context, refs []TaskRef) ([]bool, error)

	// SettleTasks ends attempts, and reports for each whether the owner had the task until now.
	// With an error, those not reported may have been settled. A full store does not refuse it.
	SettleTasks(ctx context.Context, reqs []SettleTaskRequest) ([]bool, error)

	Hooks
}

// TaskKeeper is a store whose tasks an operator can see and revive.
type TaskKeeper interface {
	// InspectTask returns the task of a key; the buried one if there is no other. It returns false
	// if there is none.
	InspectTask(ctx context.Context, queue, key string) (TaskRecord, bool, error)

	// ListTasks yields the buried tasks of a queue, or the others, in no order. It takes no
	// snapshot: tasks that change during the listing may be missing, or be seen twice. It ends with
	// the first error.
	ListTasks(ctx context.Context, queue string, buried bool) iter.Seq2[TaskRecord, error]

	// CountTasks returns the numbers of a queue.
	CountTasks(ctx context.Context, queue string) (TaskCounts, error)

	// ReviveTask makes a buried task due, with no attempts, if the key has no other task. It
	// reports whether the task with the ID is due.
	ReviveTask(ctx context.Context, ref TaskRef) (bool, error)
}

const (
	// FirstTaskLease is the longest lease of a task until its first renewal.
	FirstTaskLease = 5 * time.Second
	// CancelRemembered is how long the outcome of a cancel is kept for repeats.
	CancelRemembered = time.Minute
	// MaxTaskDelay is the longest delay of a task, and the longest time for which one is kept
	// buried.
	MaxTaskDelay = 366 * 24 * time.Hour
	// MaxTaskPayload is the largest payload of a task, in bytes.
	MaxTaskPayload = 1 << 20
	// MaxTaken is the largest Max of a [TakeTasksRequest].
	MaxTaken = 1000
	// MaxTaskAttempts is the largest number of attempts that a store counts.
	MaxTaskAttempts = math.MaxInt32
	// MaxReason is the largest Reason of a [SettleTaskRequest], in bytes.
	MaxReason = 512
)

// PutTaskRequest puts a task.
type PutTaskRequest struct {
	Queue, Key string        // 1 to 128 characters of printable ASCII; 1 to 1,024 bytes
	ID         string        // of the put: 22 characters of base64url that are never used again
	Payload    []byte        // at most [MaxTaskPayload] bytes
	After      time.Duration // 0 to [MaxTaskDelay]
	Keep       bool          // leave an existing task of the key as it is
	MaxTasks   int           // of the queue; 0 is no bound
	// Repeated means that the put may have been carried out before, and that its task may have run
	// since then: a cancel of the task that the repeat puts answers TaskEnded.
	Repeated bool
}

// PutOutcome is the outcome of PutTask.
type PutOutcome int

const (
	// TaskCreated means that the key had no task.
	TaskCreated PutOutcome = iota
	// TaskMoved means that the task takes the place of one that was waiting.
	TaskMoved
	// TaskFollows means that the key's task runs, and that this one begins after it.
	TaskFollows
	// TaskKept means that the key has a task, which stays as it is, since Keep was set; or that
	// this is the repeat of a put that was cancelled.
	TaskKept
	// QueueFull means that the queue has MaxTasks tasks.
	QueueFull
)

// PutTaskReply is the answer to a PutTaskRequest.
type PutTaskReply struct {
	Outcome PutOutcome
	Due     time.Duration // if it is TaskKept: until the existing task is due, if it waits
}

// CancelTaskRequest cancels a task.
type CancelTaskRequest struct {
	Queue, Key string
	ID         string // of the cancel: 22 characters of base64url that are never used again
	// Task is empty, or the ID of the only task that is cancelled: the task that follows it takes its
	// place, and a buried or waiting task of the key with another ID stays. The outcome is TaskAbsent
	// if the key has no task with that ID.
	Task string
}

// CancelOutcome is the outcome of CancelTask.
type CancelOutcome int

const (
	// TaskAbsent means that the key has no task.
	TaskAbsent CancelOutcome = iota
	// TaskPrevented means that the task was given to no owner, and will not be.
	TaskPrevented
	// TaskEnded means that the task waited for another attempt, that its lease, or that of the task
	// which it followed, had ended, or that it was buried. It will not run again, but may have had
	// effects.
	TaskEnded
	// TaskRunning means that an owner has the task.
	TaskRunning
)

// TakeTasksRequest takes tasks that are due.
type TakeTasksRequest struct {
	Queue  string
	Owner  string // of the take: 22 characters of base64url that are never used again
	Max    int    // 1 to [MaxTaken]
	Lease  time.Duration
	Holder string // for people: at most [MaxHolder] bytes
}

// TakeTasksReply is the answer to a TakeTasksRequest.
type TakeTasksReply struct {
	// Sent is when the process sent the request, by its own clock: the leases began no earlier.
	Sent  time.Time
	Tasks []TakenTask
	// Next is the time until the next task is due; zero if more are due than Max, and negative if
	// there is none.
	Next time.Duration
	// Idle is about how many other processes wait for tasks of the queue.
	Idle int
}

// TakenTask is a task that its owner has.
type TakenTask struct {
	Key, ID string
	Payload []byte
	Attempt int           // from 1
	Fence   int64         // larger than that of every earlier take of the key
	Late    time.Duration // since it was due
	TTL     time.Duration // of its lease, from Sent
}

// TaskRef names an attempt at a task. Owner and Lease are not used by ReviveTask.
type TaskRef struct {
	Queue, Key string
	ID         string // of the task
	Owner      string
	Lease      time.Duration // for RenewTasks
	Repeated   bool          // for SettleTasks: an earlier settlement may have been carried out
}

// Settlement is how an attempt at a task ends.
type Settlement int

const (
	// TaskDone means that the task is done.
	TaskDone Settlement = iota
	// TaskAgain means that another attempt is due after a time.
	TaskAgain
	// TaskBuried means that the task is kept for an operator.
	TaskBuried
)

// SettleTaskRequest ends an attempt at a task. The task that follows it takes its place, whatever
// the settlement.
type SettleTaskRequest struct {
	TaskRef
	How       Settlement
	After     time.Duration // of TaskAgain: until the task is due; of TaskBuried: for how long it is kept
	Reason    string        // of TaskBuried: at most [MaxReason] bytes
	Uncounted bool          // of TaskAgain: the attempt does not count
}

// TaskState is the state of a task.
type TaskState int

const (
	// TaskWaiting means that the task waits until it is due.
	TaskWaiting TaskState = iota
	// TaskTaken means that an owner has the task.
	TaskTaken
	// TaskKeptBuried means that the task is buried.
	TaskKeptBuried
)

// TaskRecord is a task, as an operator sees it.
type TaskRecord struct {
	Key, ID string
	State   TaskState
	Bytes   int           // of the payload
	Attempt int           // how many attempts have been counted
	Fence   int64         // of the last take, or zero
	Due     time.Duration // until it is due, if it waits; negative if it has been due for that time
	Lease   time.Duration // the rest of the lease, if it is taken
	Holder  string        // if it is taken
	Follows bool          // another task follows it
	Reason  string        // if it is buried
	Age     time.Duration // since it was buried
	Expires time.Duration // until the buried task is removed
}

// TaskCounts are the numbers of a queue.
type TaskCounts struct {
	Waiting, Running, Buried int
	Oldest                   time.Duration // for how long the first task has been due; zero if none is due
}
