// Package workload is what every process of a fleet does: it locks, acquires, takes tokens, and runs
// operations and tasks, as the users of the public packages do, and writes down what happened.
package workload

import (
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Kind is the mechanism of a subject.
type Kind string

// The mechanisms.
const (
	Lock      Kind = "lock"
	Semaphore Kind = "semaphore"
	Bucket    Kind = "bucket"
	Guard     Kind = "guard"
	Once      Kind = "once" // in a transaction
	Task      Kind = "task"
)

// Exclusive is the capacity of a lock, and the weight of an exclusive hold. A shared one weighs 1.
const Exclusive = math.MaxInt32

// Subject is a locker, semaphore, limiter or guard that the whole fleet uses under its name.
type Subject struct {
	Name  string
	Kind  Kind
	About string
	Keys  int // for which processes compete; operations have new ones all the time

	TTL      time.Duration
	Delay    time.Duration // a lock-delay
	Capacity int64         // of a lock [Exclusive]
	Fair     bool
	Rerun    bool // of a guard, and of that of a task: attempts with an unknown outcome run again
	Open     bool // of a guard: in an outage operations run without it
	Limits   []Limit
	Block    int64  // tokens that each process may have taken in advance
	Only     string // the only kind of store that has it; empty if all have
	Effect   Effect // of tasks

	crowd int // goroutines in each process
	long  int // of a thousand holds, how many last for up to two leases instead of 10 ms
	run   func(*actor)
	put   func(*actor) // of tasks
	lock  []lock.Option
}

// Renewed reports whether the subject's leases are renewed.
func (s *Subject) Renewed() bool { return s.TTL == ttl }

// Limit is a limit of a subject's buckets.
type Limit struct {
	Rate      int64 // tokens a second
	Burst     int64
	Overdraft int64 // by settlements
}

const (
	ttl       = time.Second
	brief     = 300 * time.Millisecond
	lockDelay = 400 * time.Millisecond

	capacity = 5
	heaviest = 3
)

// tiers are the tiers of the semaphore's requests, with what each of them leaves to others.
var tiers = []struct {
	reserve int64
	options []semaphore.Option
}{
	{reserve: 0},
	{reserve: 2, options: []semaphore.Option{semaphore.WithReserve(2)}},
}

// Subjects are all subjects.
func Subjects() []Subject {
	one := Subject{Kind: Lock, Keys: 1, Capacity: Exclusive, TTL: ttl, long: 7, run: (*actor).exclusive}
	with := func(name, about string, crowd int, change func(*Subject)) Subject {
		s := one
		s.Name, s.About, s.crowd = name, about, crowd
		change(&s)
		return s
	}
	return []Subject{
		with("lock", "default settings, re-entered now and then", 3, func(s *Subject) { s.Keys = 2 }),
		with("fair", "`WithFair`", 3, func(s *Subject) { s.Fair, s.long, s.lock = true, 20, []lock.Option{lock.WithFair()} }),
		with("rwlock", "`RLock`, `Lock`, `Downgrade`", 5, func(s *Subject) { s.run = (*actor).readWrite }),
		with("lockall", "`LockAll` of two of three keys", 2, func(s *Subject) { s.run, s.Keys = (*actor).lockAll, 3 }),
		with("lockdelay", "`WithLockDelay`", 2, func(s *Subject) { s.Delay, s.lock = lockDelay, []lock.Option{lock.WithLockDelay(lockDelay)} }),
		with(SteadyName, "of keys that no other process wants, one after the other", 2, func(s *Subject) { s.run = (*actor).steady }),
		with("brief", "`WithoutRenewal`", 2, func(s *Subject) { s.TTL, s.lock = brief, []lock.Option{lock.WithoutRenewal()} }),
		{
			Name: "semaphore", Kind: Semaphore, About: "5 permits, requests of 1 to 3", Keys: 1,
			Capacity: capacity, TTL: ttl, crowd: 6, long: 7, run: (*actor).permits,
		},
		{
			Name: "limit", Kind: Bucket, About: "40 a second, 10 at once: `Allow`, `AllowN`, `Wait`", Keys: 1,
			Limits: []Limit{{40, 10, 0}}, crowd: 2, run: (*actor).tokens,
		},
		{
			Name: "limits", Kind: Bucket, About: "30 a second, 5 at once, and 20 a second, 50 at once", Keys: 1,
			Limits: []Limit{{30, 5, 0}, {20, 50, 0}}, crowd: 2, run: (*actor).tokens,
		},
		{
			Name: "leased", Kind: Bucket, About: "40 a second, 10 at once, `WithLease(8)`", Keys: 1,
			Limits: []Limit{{40, 10, 0}}, Block: 8, crowd: 2, run: (*actor).blocks,
		},
		{
			Name: "reserved", Kind: Bucket, About: "40 a second, 20 at once, an overdraft of 20: `Reserve`, `Settle`, `Hold`", Keys: 1,
			Limits: []Limit{{40, 20, 20}}, crowd: 2, run: (*actor).reserve,
		},
		{
			Name: "guard", Kind: Guard, About: "at most once, with `MarkClean` now and then",
			Capacity: Exclusive, TTL: ttl, crowd: 2, long: 100, run: (*actor).operations,
		},
		{
			Name: "rerun", Kind: Guard, About: "`WithRerun`", Rerun: true,
			Capacity: Exclusive, TTL: ttl, crowd: 2, long: 100, run: (*actor).operations,
		},
		{
			Name: "unprotected", Kind: Guard, About: "8 callers at once in each process, which run without it in an outage", Open: true,
			Capacity: Exclusive, TTL: ttl, crowd: 8, run: (*actor).unprotected,
		},
		{
			Name: OnceName, Kind: Once, About: "`pgstore.Do`: an operation and its effect in one transaction", Only: "postgres",
			Capacity: Exclusive, TTL: ttl, crowd: 3, run: (*actor).once,
		},
		task(TasksName, "`Put`, `Run`: an effect by a guard with the task's ID", 3, func(s *Subject) { s.Effect, s.put = Guarded, (*actor).putOne }),
		task("rerun tasks", "the same, `WithRerun`", 3, func(s *Subject) { s.Effect, s.Rerun, s.put = Guarded, true, (*actor).putOne }),
		task(CancelsName, "`Cancel` when they are due", 7, func(s *Subject) { s.put = (*actor).race }),
		task("followed tasks", "`Put` to keys that run, and `Cancel`", 3, func(s *Subject) { s.Keys, s.put = 2, (*actor).putMore }),
		task(FinishName, "`pgstore.PutTask` and `Finish`: a task and its effect in transactions", 3, func(s *Subject) {
			s.Only, s.Effect, s.put = "postgres", Transacted, (*actor).putIn
		}),
	}
}

// task is a subject whose tasks one goroutine of each process runs, and the others put.
func task(name, about string, crowd int, change func(*Subject)) Subject {
	s := Subject{
		Name: name, Kind: Task, About: about, Keys: 1, Capacity: Exclusive, TTL: ttl, crowd: crowd, long: 7, run: (*actor).tasks,
	}
	change(&s)
	return s
}

// SteadyName is the name of the subject that fails only if the store does, and takes as long as
// that.
const SteadyName = "steady"

// The names of the subjects that are counted.
const (
	TasksName   = "tasks"
	CancelsName = "cancels"
)

// The names of the subjects whose effects are in a table.
const (
	OnceName   = "once"
	FinishName = "finished tasks"
)

// SubjectsOf are the subjects of a kind of store whose names match an expression. Tasks are of
// stores that outlive a process, and etcd and ZooKeeper have leases only.
func SubjectsOf(kind, names string) ([]Subject, error) {
	named, err := regexp.Compile(names)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(Subjects(), func(s Subject) bool {
		missing := s.Kind == Task && kind == "memory" || s.Kind != Lock && s.Kind != Semaphore && (kind == Etcd || kind == ZooKeeper)
		return s.Only != "" && s.Only != kind || missing || !named.MatchString(s.Name)
	}), nil
}

// WithoutTasks matches the names of all subjects but tasks, which take as long as the machine needs
// to end after the last fault.
func WithoutTasks() string {
	var names []string
	for _, s := range Subjects() {
		if s.Kind != Task {
			names = append(names, s.Name)
		}
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// plan is the plan of a subject's buckets.
func (s *Subject) plan(bug Bug) tokenbucket.Plan {
	var all tokenbucket.Limits
	for i, l := range s.Limits {
		if bug == Generous {
			l.Rate *= 4
		}
		all = append(all, tokenbucket.PerSecond(l.Rate).Burst(l.Burst).Overdraft(l.Overdraft).Named(string(rune('a'+i))))
	}
	return all
}
