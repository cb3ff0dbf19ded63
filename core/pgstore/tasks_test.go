package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestDelays(t *testing.T) {
	t.Parallel()
	storetest.Delays(t, runner(migrated(t)))
}

// putOf returns a request to put a task of the queue "orders".
func putOf(key string, after time.Duration) store.PutTaskRequest {
	return store.PutTaskRequest{Queue: "orders", Key: key, ID: rand.Text()[:22], Payload: []byte("of " + key), After: after}
}

func puts(t testing.TB, s *Store, req store.PutTaskRequest, want store.PutOutcome) {
	t.Helper()
	if reply, err := s.PutTask(t.Context(), req); err != nil || reply.Outcome != want {
		t.Fatalf("%s: %+v, %v, want outcome %d", req.Key, reply, err, want)
	}
}

// takeTasks takes due tasks of the queue "orders", and returns references to the attempts.
func takeTasks(ctx context.Context, s *Store, most int, lease time.Duration) ([]store.TaskRef, store.TakeTasksReply, error) {
	req := store.TakeTasksRequest{Queue: "orders", Owner: rand.Text()[:22], Max: most, Lease: lease, Holder: "me"}
	reply, err := s.TakeTasks(ctx, req)
	refs := make([]store.TaskRef, len(reply.Tasks))
	for i, task := range reply.Tasks {
		refs[i] = store.TaskRef{Queue: req.Queue, Key: task.Key, ID: task.ID, Owner: req.Owner, Lease: time.Minute}
	}
	return refs, reply, err
}

// takesTasks takes so many tasks.
func takesTasks(t testing.TB, s *Store, n int) []store.TaskRef {
	t.Helper()
	refs, reply, err := takeTasks(t.Context(), s, max(n, 1), time.Minute)
	if err != nil || len(refs) != n {
		t.Fatalf("took %d tasks, want %d; the next is due in %v: %v", len(refs), n, reply.Next, err)
	}
	return refs
}

func settlementsOf(refs []store.TaskRef, how store.Settlement, after time.Duration) []store.SettleTaskRequest {
	reqs := make([]store.SettleTaskRequest, len(refs))
	for i, ref := range refs {
		reqs[i] = store.SettleTaskRequest{TaskRef: ref, How: how, After: after, Reason: "a reason"}
	}
	return reqs
}

// settlesAll settles attempts, all of which own their tasks.
func settlesAll(t testing.TB, s *Store, refs []store.TaskRef, how store.Settlement, after time.Duration) {
	t.Helper()
	owned, err := s.SettleTasks(t.Context(), settlementsOf(refs, how, after))
	if err != nil || len(owned) != len(refs) || slices.Contains(owned, false) {
		t.Fatalf("SettleTasks: %t, %v", owned, err)
	}
}

// manyTasks puts tasks with numbers, which are due at intervals of 1 ms, without the store.
func manyTasks(t testing.TB, s *Store, first, last int, after time.Duration) {
	t.Helper()
	_, err := s.db.Pool().Exec(t.Context(), s.db.Text(`INSERT INTO lk.tasks (queue, key, put, due, outcome, payload)
		SELECT 'orders', convert_to('many ' || i, 'UTF8'), 'p' || i, lk.now_us() + $3 + i * 1000, 'C', 'payload'
		FROM generate_series($1::int, $2::int) i`), first, last, after.Microseconds())
	must(t, err)
}

// Workers of two processes take each task once.
func TestTasksOfTwoProcesses(t *testing.T) {
	t.Parallel()
	const tasks = 5000
	dsn := migrated(t)
	stores := []*Store{openTestStore(t, dsn), openTestStore(t, dsn)}
	manyTasks(t, stores[0], 1, tasks-100, -time.Hour)
	var all sync.WaitGroup
	for i := range 100 {
		all.Go(func() { puts(t, stores[i%2], putOf(fmt.Sprint("k", i), 0), store.TaskCreated) })
	}
	var mu sync.Mutex
	taken, left := make(map[string]int), tasks
	for worker := range 4 {
		all.Go(func() {
			for {
				refs, reply, err := takeTasks(t.Context(), stores[worker%2], 50, time.Minute)
				if err != nil {
					t.Error(err)
					return
				}
				owned, err := stores[worker%2].SettleTasks(t.Context(), settlementsOf(refs, store.TaskDone, 0))
				if err != nil || slices.Contains(owned, false) {
					t.Errorf("SettleTasks: %t, %v", owned, err)
					return
				}
				mu.Lock()
				for _, ref := range refs {
					taken[ref.Key]++
				}
				left -= len(refs)
				over := left <= 0
				mu.Unlock()
				if over {
					return
				}
				if reply.Next == 0 {
					continue
				}
				// Without a bound it would never return if another worker has just finished the last tasks.
				if err := stores[worker%2].AwaitTasks(t.Context(), "orders", time.Second); err != nil || t.Failed() {
					return
				}
			}
		})
	}
	all.Wait()
	if len(taken) != tasks || left != 0 {
		t.Errorf("%d tasks were taken, %d too many times; want %d", len(taken), -left, tasks)
	}
}

// What was put before a crash of the server is taken, however often the server crashes, and is taken
// no more once its end was confirmed.
func TestTasksSurviveCrashes(t *testing.T) {
	t.Parallel()
	const tasks = 300
	server := postgrestest.Start(t)
	migrateIn(t, server.DSN())
	var stores []*Store
	for range 2 {
		stores = append(stores, openTestStore(t, server.DSN(), WithTimeout(brisk), new(logbook).option()))
	}
	var (
		mu       sync.Mutex
		all      sync.WaitGroup
		put      = make(map[string]bool) // acknowledged
		finished = make(map[string]bool) // and the put was acknowledged: the repeat of another one puts the task again
		puttable atomic.Int64
		progress atomic.Int64
	)
	ctx, over := context.WithCancel(t.Context())
	defer over()
	for range 4 {
		all.Go(func() {
			for {
				n := puttable.Add(1)
				if n > tasks {
					return
				}
				req := putOf(strconv.FormatInt(n, 10), 0)
				for ctx.Err() == nil {
					if _, err := stores[n%2].PutTask(ctx, req); err == nil {
						break
					}
					<-time.After(5 * time.Millisecond)
				}
				mu.Lock()
				put[req.Key] = true
				mu.Unlock()
			}
		})
	}
	finish := func(s *Store, refs []store.TaskRef) {
		reqs := settlementsOf(refs, store.TaskDone, 0)
		for range 20 {
			owned, err := s.SettleTasks(ctx, reqs)
			mu.Lock()
			for i := range owned {
				if owned[i] && !reqs[i].Repeated && finished[reqs[i].Key] {
					t.Errorf("%s was finished twice", reqs[i].Key)
				}
				if owned[i] {
					finished[reqs[i].Key] = put[reqs[i].Key]
					progress.Add(1)
				}
			}
			mu.Unlock()
			if err == nil || ctx.Err() != nil {
				return
			}
			for i := range reqs {
				reqs[i].Repeated = true
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	for worker := range 4 {
		all.Go(func() {
			for ctx.Err() == nil {
				refs, _, err := takeTasks(ctx, stores[worker%2], 5, testpace.Scale(300*time.Millisecond))
				if err != nil || len(refs) == 0 {
					<-time.After(5 * time.Millisecond)
					continue
				}
				finish(stores[worker%2], refs)
			}
		})
	}
	for range 4 {
		before := progress.Load()
		testpace.Eventually(t, patience, "tasks are finished between two crashes", func() bool {
			return progress.Load() > before+20 || progress.Load() >= tasks-20
		})
		server.Restart() // kill -9 of all its processes
	}
	testpace.Eventually(t, patience, "all tasks are finished", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(put) == tasks && len(finished) == tasks
	})
	over()
	all.Wait()
	if n := query[int](t, stores[0], "SELECT count(*) FROM lk.tasks"); n != 0 {
		t.Errorf("%d tasks are left", n)
	}
}

// Steps read as few pages with 100,000 waiting tasks as with ten, though their plans were made then.
func TestManyWaitingTasks(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	conn, err := s.db.Pool().Acquire(t.Context()) // the plans are those of a small table
	must(t, err)
	defer conn.Release()
	const list = "(SELECT array_agg('orders'::text) q, array_agg(convert_to('many ' || i, 'UTF8')) k, array_agg('p' || i) p, " +
		"array_agg('owner'::text) o, array_agg((ARRAY['D', 'A', 'B'])[i % 3 + 1]) h, array_agg(1::bigint) n, array_agg(false) b " +
		"FROM generate_series(501, 509) i) a"
	steps := map[string]string{
		"put":        "SELECT lk.put_task_1('orders', 'new', 'id', 'payload', 3600000000, false, false, 0, false)",
		"move":       "SELECT lk.put_task_1('orders', 'many 500', 'id', 'payload', 3600000000, false, false, 0, false)",
		"cancel":     "SELECT lk.cancel_task_1('orders', 'many 500', 'id', 60000000, '')",
		"take":       "SELECT lk.take_tasks_1('orders', 'other', 5, 5000000, '', 'inbox', 0)",
		"await":      "SELECT lk.await_tasks_1('orders', 'inbox', 9000000)",
		"settle":     "SELECT lk.settle_task_1('orders', 'many 501', 'p501', 'owner', 'D', 0, '', false, false, false)",
		"settle all": "SELECT lk.settle_tasks_1(q, k, p, o, h, n, k, b, false) FROM " + list,
		"renew all":  "SELECT lk.renew_tasks_1(q, k, p, o, n) FROM " + list,
	}
	read := func() map[string]int {
		read := make(map[string]int)
		for name, text := range steps {
			tx, err := conn.Begin(t.Context())
			must(t, err)
			var most []int
			for range 7 {
				point, err := tx.Begin(t.Context())
				must(t, err)
				most = append(most, pagesRead(t, point, text))
				must(t, point.Rollback(t.Context()))
			}
			slices.Sort(most)
			read[name] = most[len(most)/2]
			must(t, tx.Rollback(t.Context()))
		}
		return read
	}
	own := func() {
		_, err := conn.Exec(t.Context(), "UPDATE lk.tasks SET running = true, owner = 'owner' WHERE put BETWEEN 'p501' AND 'p509' AND length(put) = 4")
		must(t, err)
	}
	puts(t, s, putOf("due", 0), store.TaskCreated)
	manyTasks(t, s, 500, 510, time.Hour)
	_, err = conn.Exec(t.Context(), "VACUUM ANALYZE lk.tasks")
	must(t, err)
	own()
	few := read()
	manyTasks(t, s, 1000, 100_000, time.Hour)
	for name, n := range read() {
		if n > 2*few[name]+40 {
			t.Errorf("%s reads %d pages with 100,000 tasks, and %d with ten", name, n, few[name])
		}
	}
}

// While an old transaction keeps the server from removing what was taken, a take of a busy queue does
// not visit it.
func TestAnOldTransactionBesideAQueue(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	defer openOldTransaction(t, s)()
	manyTasks(t, s, 1, 12_000, -time.Hour)
	for range 120 {
		settlesAll(t, s, takesTasks(t, s, 95), store.TaskDone, 0)
	}
	const text = "SELECT lk.take_tasks_1('orders', 'owner', 5, 5000000, '', 'inbox', $1)"
	from := s.queues.from("orders")
	if from == 0 { // a second has passed
		takesTasks(t, s, 5)
		from = s.queues.from("orders")
	}
	all, some := pages(t, s, text, 0), pages(t, s, text, from)
	if some > all/3 {
		t.Errorf("a take reads %d pages, and %d of the whole queue", some, all)
	}
	// A task that is due earlier, such as that of a late transaction, is taken nevertheless.
	_, err := s.db.Pool().Exec(t.Context(), "UPDATE lk.tasks SET due = due - 7200000000 WHERE key = 'many 12000'")
	must(t, err)
	must(t, s.AwaitTasks(t.Context(), "orders", -1))
	if refs := takesTasks(t, s, 1); refs[0].Key != "many 12000" {
		t.Errorf("%s was taken, which is not the first", refs[0].Key)
	}
}

// Batches about the same tasks in opposite orders do not wait for each other.
func TestBatchesInOppositeOrders(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	for i := range 40 {
		puts(t, s, putOf(fmt.Sprintf("%02d", i), 0), store.TaskCreated)
	}
	refs := takesTasks(t, s, 40)
	backward := slices.Clone(refs)
	slices.Reverse(backward)
	var all, renewed sync.WaitGroup
	renewed.Add(8)
	for i := range 8 {
		all.Go(func() {
			mine := refs
			if i%2 == 0 {
				mine = backward
			}
			for range 20 {
				owned, err := s.RenewTasks(t.Context(), mine)
				if err != nil || slices.Contains(owned, false) {
					t.Errorf("RenewTasks: %t, %v", owned, err)
				}
			}
			renewed.Done()
			renewed.Wait()
			owned, err := s.SettleTasks(t.Context(), settlementsOf(mine, store.TaskAgain, time.Hour))
			if err != nil || slices.Contains(owned, false) {
				t.Errorf("SettleTasks: %t, %v", owned, err)
			}
		})
	}
	all.Wait()
	if n := query[int](t, s, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n > 0 {
		t.Errorf("%d deadlocks", n)
	}
}

// A transaction that has locked a task does not delay the others of a batch, and its task is not
// taken.
func TestATaskThatIsLocked(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s := openTestStore(t, dsn, WithTimeout(brisk))
	for i := range 4 {
		puts(t, s, putOf(fmt.Sprint(i), 0), store.TaskCreated)
	}
	refs := takesTasks(t, s, 4)[:3]
	if owned, err := s.RenewTasks(t.Context(), refs); err != nil || slices.Contains(owned, false) { // for longer than the test
		t.Fatalf("RenewTasks: %t, %v", owned, err)
	}
	other := connect(t, dsn)
	tx, err := other.Begin(t.Context())
	must(t, err)
	_, err = s.putTaskIn(t.Context(), tx, putOf(refs[1].Key, 0)) // which follows
	must(t, err)
	owned, err := s.RenewTasks(t.Context(), refs)
	if !slices.Equal(owned, []bool{true, false, true}) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("RenewTasks: %t, %v", owned, err)
	}
	owned, err = s.SettleTasks(t.Context(), settlementsOf(refs, store.TaskDone, 0))
	if !slices.Equal(owned, []bool{true, false, true}) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("SettleTasks: %t, %v", owned, err)
	}
	must(t, tx.Rollback(t.Context()))
	settlesAll(t, s, refs[1:2], store.TaskDone, 0)
}

// A statement whose reply was lost is repeated, and has the outcome of the first.
func TestTaskStepsWithoutAReply(t *testing.T) {
	t.Parallel()
	_, proxy, s := behindProxy(t)
	lose := func(function string) { proxy.LoseReplies(function, 1, 0) }
	req := putOf("k", 0)
	puts(t, s, putOf("warm", time.Hour), store.TaskCreated) // it prepares the statements
	lose("lk.put_task_1")
	puts(t, s, req, store.TaskCreated)
	refs := takesTasks(t, s, 1)
	lose("lk.settle_task_1")
	settlesAll(t, s, refs, store.TaskDone, 0)
	puts(t, s, putOf("k", 0), store.TaskCreated)
	lose("lk.cancel_task_1")
	if outcome, err := s.CancelTask(t.Context(), store.CancelTaskRequest{Queue: "orders", Key: "k", ID: rand.Text()[:22]}); err != nil || outcome != store.TaskPrevented {
		t.Errorf("CancelTask: %d, %v", outcome, err)
	}
	for i := range 2 {
		puts(t, s, putOf(fmt.Sprint(i), 0), store.TaskCreated)
	}
	refs = takesTasks(t, s, 2)
	lose("lk.settle_tasks_1")
	settlesAll(t, s, refs, store.TaskDone, 0)
}

// A store that repeats a put without a reply says that it is a repeat. Here a trigger removes the task
// before the repeat, which makes it anew: its cancel prevents nothing.
func TestAPutThatTheStoreRepeats(t *testing.T) {
	t.Parallel()
	dsn, proxy, s := behindProxy(t)
	admin := connect(t, dsn)
	puts(t, s, putOf("warm", time.Hour), store.TaskCreated) // it prepares the statements
	for _, statement := range []string{
		"CREATE SEQUENCE public.inserted",
		`CREATE FUNCTION public.run() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			IF nextval('public.inserted') = 1 THEN DELETE FROM lk.tasks WHERE key = NEW.key; END IF;
			RETURN NULL;
		END $$`,
		"CREATE TRIGGER run AFTER INSERT ON lk.tasks FOR EACH ROW EXECUTE FUNCTION public.run()",
	} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	proxy.LoseReplies("lk.put_task_1", 1, 0)
	puts(t, s, putOf("k", time.Hour), store.TaskCreated)
	outcome, err := s.CancelTask(t.Context(), store.CancelTaskRequest{Queue: "orders", Key: "k", ID: rand.Text()[:22]})
	if err != nil || outcome != store.TaskEnded {
		t.Errorf("CancelTask: %d, %v; want that it may have run", outcome, err)
	}
}

// The payloads of a take are bounded, so that its reply is there in time.
func TestTakesOfLargePayloads(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	req := putOf("", 0)
	req.Payload = make([]byte, store.MaxTaskPayload)
	for i := range 20 {
		req.Key, req.ID = fmt.Sprint(i), rand.Text()[:22]
		puts(t, s, req, store.TaskCreated)
	}
	refs, reply, err := takeTasks(t.Context(), s, 20, time.Minute)
	if err != nil || len(refs) < 10 || len(refs) >= 20 || reply.Next != 0 {
		t.Errorf("took %d tasks, the next is due in %v: %v", len(refs), reply.Next, err)
	}
	takesTasks(t, s, 20-len(refs))
}

// A queue with a bound is counted, if it has room at times only, and is never above it.
func TestABoundedQueue(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	const most = 200
	for i := range most {
		req := putOf(fmt.Sprint(i), time.Hour)
		req.MaxTasks = most
		puts(t, s, req, store.TaskCreated)
	}
	req := putOf("further", 0)
	req.MaxTasks = most
	puts(t, s, req, store.QueueFull)
	counts, err := s.CountTasks(t.Context(), "orders")
	if err != nil || counts.Waiting != most {
		t.Errorf("%+v, %v", counts, err)
	}
}

// A schema of the release before gets the tables of tasks.
func TestMigrateFromVersionOne(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, "template1")
	conn := connect(t, dsn)
	old, _, found := strings.Cut(Schema(), "-- Delayed tasks.")
	if !found {
		t.Fatal("the schema has no tasks")
	}
	_, err := conn.Exec(t.Context(), "BEGIN; "+old+"; INSERT INTO lk.schema_version (version, compatible) VALUES (1, 1); COMMIT", pgx.QueryExecModeSimpleProtocol)
	must(t, err)
	wantMisconfigured(t, openTestStore(t, dsn).Ping(t.Context()), store.WrongServer, "version 1", "Migrate")
	must(t, Migrate(t.Context(), conn))
	s := openTestStore(t, dsn)
	puts(t, s, putOf("k", 0), store.TaskCreated)
	takesTasks(t, s, 1)
	if n := query[int](t, s, "SELECT compatible FROM lk.schema_version"); n != 1 {
		t.Errorf("compatible with version %d", n)
	}
}
