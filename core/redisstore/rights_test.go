package redisstore_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The rights of a Redis user in docs/redis.md.

// documentation returns the part of docs/redis.md between two texts.
func documentation(t testing.TB, after, before string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), after)
	part, _, closed := strings.Cut(rest, before)
	if !found || !closed {
		t.Fatalf("docs/redis.md has nothing between %q and %q", after, before)
	}
	return part
}

// serverRights returns the rights that the documentation lists, as ACL SETUSER takes them.
func serverRights(t testing.TB) []string {
	t.Helper()
	return strings.Fields(documentation(t, "ACL SETUSER lockkeeper on >password ", "```"))
}

// clusterRights returns the rights that it lists for the nodes of a Cluster.
func clusterRights(t testing.TB) []string {
	t.Helper()
	return append(serverRights(t), strings.Fields("+"+documentation(t, "ACL SETUSER lockkeeper +", "```"))...)
}

// grant gives the user lockkeeper of a server these rights, and no others.
func grant(t testing.TB, server *redistest.Server, rights ...string) {
	t.Helper()
	args := []any{"ACL", "SETUSER", "lockkeeper", "reset", "on", ">password"}
	for _, right := range rights {
		args = append(args, right)
	}
	if err := server.Client().Do(ctx(), args...).Err(); err != nil {
		t.Fatal(err)
	}
}

// asLockkeeper returns a client of the user lockkeeper.
func asLockkeeper(t testing.TB, server *redistest.Server) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Username: "lockkeeper", Password: "password",
		ReadTimeout: time.Minute, PoolTimeout: time.Minute, PoolSize: 20, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// asLockkeeperOn returns a client of the user lockkeeper of a Cluster.
func asLockkeeperOn(t testing.TB, cluster *redistest.Cluster) *redis.ClusterClient {
	t.Helper()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: cluster.Addrs(), Username: "lockkeeper", Password: "password",
		ReadTimeout: time.Minute, PoolTimeout: time.Minute, PoolSize: 20, ContextTimeoutEnabled: true,
	})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// contractOn runs the contract, its cases side by side.
func contractOn(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	storetest.All(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*redisstore.Store])) {
		t.Parallel()
		test(t, storetest.Harness[*redisstore.Store]{
			Store:   newStore(t, client),
			Advance: func(d time.Duration) { <-time.After(d) },
		})
	})
}

// The contract on every server whose binary is given, by a user who has the documented rights
// alone.
func TestContractOnOtherServers(t *testing.T) {
	t.Parallel()
	for _, binary := range redistest.Binaries(t) {
		t.Run(binary.Version(t), func(t *testing.T) {
			t.Parallel()
			server := binary.Start(t)
			wantForbidden(t, server)
			grant(t, server, serverRights(t)...)
			contractOn(t, asLockkeeper(t, server))
		})
	}
}

// wantForbidden checks that the error of a script that meets a forbidden command says so.
func wantForbidden(t *testing.T, server *redistest.Server) {
	t.Helper()
	grant(t, server, slices.DeleteFunc(serverRights(t), func(r string) bool { return r == "+set" })...)
	err := operations["decision"](t, newStore(t, asLockkeeper(t, server)))
	if !errors.Is(err, store.ErrMisconfigured) || errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("where scripts may not SET: %v, want store.ErrMisconfigured", err)
	}
}

func TestAScriptMeetsAForbiddenCommand(t *testing.T) { wantForbidden(t, redistest.Start(t)) }

// The contract, by a user who has the documented rights alone: they are enough for all that a store
// does, and each of them is used.
func TestContractOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	grant(t, server, serverRights(t)...)
	client := asLockkeeper(t, server)
	contractOn(t, client)
	s := newStore(t, client)
	acked := newStore(t, client, redisstore.WithReplicaAcks(1, time.Millisecond))
	if _, err := newClaim("acked", "holder").acquire(acked); !errors.Is(err, redisstore.ErrNotReplicated) {
		t.Errorf("acquire: %v, want no replica to confirm it", err)
	}
	eventually(t, 10*time.Second, "a batch of decisions, and one whose script the server has lost", func() bool {
		must(t, server.Client().ScriptFlush(ctx()).Err())
		must(t, operations["decision"](t, s))
		must(t, operations["many decisions"](t, s))
		must(t, operations["check"](t, s))
		used := commands(t, server)
		return used["mget"] && used["eval"]
	})
	wantSufficient(t, serverRights(t), server)
}

func TestContractOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	for _, server := range cluster.Servers {
		grant(t, server, clusterRights(t)...)
	}
	client := asLockkeeperOn(t, cluster)

	must(t, decideWhileASlotMoves(t, cluster, newLimiter(t, newStore(t, client))))
	contractOn(t, client)
	wantSufficient(t, clusterRights(t)[len(serverRights(t)):], cluster.Servers...)
}

// decideWhileASlotMoves returns the error of a decision about a key whose slot migrates.
func decideWhileASlotMoves(t *testing.T, cluster *redistest.Cluster, l *tokenbucket.Limiter) error {
	t.Helper()
	if _, err := l.Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	from := slices.IndexFunc(cluster.Servers, func(server *redistest.Server) bool {
		return server.Client().DBSize(ctx()).Val() > 0
	})
	source, target := cluster.Servers[from].Client(), cluster.Servers[(from+1)%len(cluster.Servers)].Client()
	key := onlyKey(t, source)
	slot := source.ClusterKeySlot(ctx(), key).Val()
	state := func(client *redis.Client, args ...any) {
		t.Helper()
		must(t, client.Do(ctx(), append([]any{"CLUSTER", "SETSLOT", slot}, args...)...).Err())
	}
	state(target, "IMPORTING", source.Do(ctx(), "CLUSTER", "MYID").Val())
	state(source, "MIGRATING", target.Do(ctx(), "CLUSTER", "MYID").Val())
	must(t, source.Del(ctx(), key).Err())
	_, err := l.Allow(ctx(), "k")
	if err == nil && onlyKey(t, target) != key {
		t.Error("the decision was not made on the target of the migration")
	}
	must(t, target.FlushAll(ctx()).Err())
	state(source, "STABLE")
	state(target, "STABLE")
	return err
}

// wantSufficient fails the test if the user lockkeeper has sent a command that the rights do not
// have, or has not sent one that they have.
func wantSufficient(t *testing.T, rights []string, servers ...*redistest.Server) {
	t.Helper()
	used := make(map[string]bool)
	for _, server := range servers {
		maps.Copy(used, commands(t, server))
		denied, err := server.Client().ACLLog(ctx(), 128).Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range denied {
			if !strings.HasPrefix(d.Object, "client") { // which tells the server who the client is
				t.Errorf("the store sent %s (%s), which is not documented", d.Object, d.Reason)
			}
		}
	}
	for _, right := range rights {
		command, isCommand := strings.CutPrefix(right, "+")
		container, _, _ := strings.Cut(command, "|") // which counts for all of it before version 7
		if isCommand && !used[command] && !used[container] {
			t.Errorf("the documentation lists %s, which the store does not use", command)
		}
	}
}

// commands returns which commands a server has carried out.
func commands(t testing.TB, server *redistest.Server) map[string]bool {
	t.Helper()
	used := make(map[string]bool)
	stats, err := server.Client().Info(ctx(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(stats, "\r\n") {
		if stat, ok := strings.CutPrefix(line, "cmdstat_"); ok {
			command, counts, _ := strings.Cut(stat, ":")
			used[command] = !strings.HasPrefix(counts, "calls=0,")
		}
	}
	return used
}

// aTask returns the put of a task that is due at once.
func aTask(key string) store.PutTaskRequest {
	return store.PutTaskRequest{Queue: "tasks", Key: key, ID: newOp(key).id, Payload: []byte("payload")}
}

// operations are what users call, by name.
var operations = map[string]func(t testing.TB, s *redisstore.Store) error{
	"decision": func(t testing.TB, s *redisstore.Store) error {
		_, err := newLimiter(t, s).Allow(ctx(), "k")
		return err
	},
	"many decisions": func(t testing.TB, s *redisstore.Store) error {
		var (
			all  sync.WaitGroup
			errs = make([]error, 500)
			l    = newLimiter(t, s)
		)
		for i := range errs {
			all.Go(func() { _, errs[i] = l.Allow(ctx(), fmt.Sprint("k", i)) })
		}
		all.Wait()
		return errors.Join(errs...)
	},
	"lock": func(_ testing.TB, s *redisstore.Store) error {
		c := newClaim("k", "holder")
		_, err := c.acquire(s)
		if err == nil {
			_, err = c.release(s)
		}
		return err
	},
	"list": func(_ testing.TB, s *redisstore.Store) error {
		for _, err := range s.ListLeases(ctx(), newClaim("k", "").Name) {
			return err
		}
		return nil
	},
	"permits": func(_ testing.TB, s *redisstore.Store) error {
		a, b := newPermit("k", "a", 1, 2), newPermit("k", "b", 1, 2)
		_, err := a.acquire(s)
		if err == nil {
			_, err = b.acquire(s)
		}
		if err == nil {
			_, err = a.release(s)
		}
		if err == nil {
			_, err = b.release(s)
		}
		return err
	},
	"queue": func(t testing.TB, s *redisstore.Store) error {
		holder, waiter := newClaim("queue", "holder"), newClaim("queue", "waiter").queued()
		defer func() { _, _ = holder.release(s) }()
		defer func() { _, _ = waiter.release(s) }()
		if _, err := holder.acquire(s); err != nil {
			return err
		}
		if _, err := waiter.acquire(s); err != nil {
			return err
		}
		w := waiter.await(t, s)
		if _, err := holder.release(s); err != nil {
			return err
		}
		<-w.done
		return w.err
	},
	"operation": func(_ testing.TB, s *redisstore.Store) error {
		_, err := newOp("o").begin(s)
		if err == nil {
			_, err = newOp("o").settle(s, "result")
		}
		return err
	},
	"latch": func(_ testing.TB, s *redisstore.Store) error {
		_, err := s.CountDownLatch(ctx(), store.LatchRequest{Name: "l", Count: 2, TTL: time.Minute}, "p")
		return err
	},
	"task": func(_ testing.TB, s *redisstore.Store) error {
		_, err := s.PutTask(ctx(), aTask("k"))
		if err != nil {
			return err
		}
		taken, err := s.TakeTasks(ctx(), store.TakeTasksRequest{Queue: "tasks", Owner: newOp("owner").id, Max: 1, Lease: time.Minute})
		if err != nil {
			return err
		}
		var refs []store.TaskRef
		var ends []store.SettleTaskRequest
		for _, task := range taken.Tasks {
			ref := store.TaskRef{Queue: "tasks", Key: task.Key, ID: task.ID, Owner: newOp("owner").id, Lease: time.Minute}
			refs, ends = append(refs, ref), append(ends, store.SettleTaskRequest{TaskRef: ref})
		}
		_, err = s.RenewTasks(ctx(), refs)
		if err == nil {
			_, err = s.SettleTasks(ctx(), ends)
		}
		if err == nil {
			_, err = s.CancelTask(ctx(), store.CancelTaskRequest{Queue: "tasks", Key: "k", ID: newOp("cancel").id})
		}
		if err == nil {
			_, err = s.CountTasks(ctx(), "tasks")
		}
		return err
	},
	"inspect task": func(_ testing.TB, s *redisstore.Store) error {
		_, err := s.PutTask(ctx(), aTask("inspected"))
		if err == nil {
			_, _, err = s.InspectTask(ctx(), "tasks", "inspected")
		}
		return err
	},
	"list tasks": func(_ testing.TB, s *redisstore.Store) error {
		for _, err := range s.ListTasks(ctx(), "an empty queue", false) {
			return err
		}
		return nil
	},
	"document": func(_ testing.TB, s *redisstore.Store) error {
		version, _, err := s.PutDocument(ctx(), store.DocumentRequest{Space: "s", Name: "k", Data: []byte("text")})
		if err == nil {
			_, _, err = s.GetDocument(ctx(), "s", "k")
		}
		for _, listed := range s.ListDocuments(ctx(), "s") {
			err = errors.Join(err, listed)
		}
		if err == nil {
			_, err = s.RemoveDocument(ctx(), "s", "k", version)
		}
		return err
	},
	"check":  func(_ testing.TB, s *redisstore.Store) error { _, err := s.Check(ctx()); return err },
	"ping":   func(_ testing.TB, s *redisstore.Store) error { return s.Ping(ctx()) },
	"uptime": func(_ testing.TB, s *redisstore.Store) error { _, err := s.Uptime(ctx()); return err },
}

// missing is what fails without a right.
type missing struct {
	fails  []string // operations, and no others
	logged string
	check  func(t *testing.T, server *redistest.Server, s *redisstore.Store)
}

// onlyScripts are the operations that are scripts.
var onlyScripts = []string{
	"decision", "many decisions", "lock", "permits", "queue", "operation", "latch", "task", "inspect task", "list tasks",
	"document",
}

var missingOnServer = map[string]missing{
	"~lk:*":    {fails: onlyScripts},
	"+evalsha": {fails: onlyScripts},
	"+eval": {check: func(t *testing.T, server *redistest.Server, s *redisstore.Store) {
		must(t, server.Client().ScriptFlush(ctx()).Err())
		failed := 0
		for range 10 {
			if operations["lock"](t, s) != nil {
				failed++
			}
		}
		if failed != 1 {
			t.Errorf("%d of 10 locks failed after SCRIPT FLUSH, want the first one", failed)
		}
	}},
	"+script|load": {check: func(t *testing.T, server *redistest.Server, _ *redisstore.Store) {
		if !commands(t, server)["eval"] {
			t.Error("no script was sent as text")
		}
	}},
	"+info":    {fails: []string{"uptime"}, logged: "cannot read maxmemory-policy"},
	"+ping":    {fails: []string{"ping"}},
	"+role":    {},
	"+scan":    {fails: []string{"list"}},
	"+mget":    {},
	"+hscan":   {fails: []string{"list tasks"}},
	"+hstrlen": {fails: []string{"inspect task"}},
	"+wait": {check: func(t *testing.T, server *redistest.Server, _ *redisstore.Store) {
		acked := newStore(t, asLockkeeper(t, server), redisstore.WithReplicaAcks(1, time.Millisecond))
		_, err := newClaim("acked", "holder").acquire(acked)
		wantUnavailable(t, err, false)
	}},
	"+pubsub|numsub": {check: wantPassedOver},
	"+publish":       {check: wantPolling},
	"+subscribe":     {check: wantPolling, logged: "cannot subscribe"},
	"&lk:inbox:*":    {check: wantPolling, logged: "cannot subscribe"},
}

// wantPassedOver checks that a process that has died is passed over once it has missed its heartbeats.
func wantPassedOver(t *testing.T, server *redistest.Server, s *redisstore.Store) {
	t.Helper()
	dead := newStore(t, asLockkeeper(t, server))
	must(t, operations["queue"](t, dead)) // which subscribes
	holder, ghost, next := newClaim("left", "holder"), newClaim("left", "ghost").queued(), newClaim("left", "next")
	holder.gets(t, s, store.Granted)
	ghost.gets(t, dead, store.Queued)
	must(t, dead.Close())
	w := next.waitsIn(t, s)
	holder.ends(t, s, true)
	w.granted(t, 10*time.Second)
	next.ends(t, s, true)
}

// wantPolling checks that waiters are granted a lock, see a latch open, and find a task, in time
// without pushes.
func wantPolling(t *testing.T, _ *redistest.Server, s *redisstore.Store) {
	t.Helper()
	latch := store.LatchRequest{Name: "polled", Count: 1, TTL: time.Minute}
	opened := make(chan error, 1)
	go func() { opened <- s.AwaitLatch(ctx(), latch) }()
	if took := handOver(t, s, s, "k"); took > 2*time.Second {
		t.Errorf("a lock changed hands after %v", took)
	}
	began := time.Now()
	_, err := s.CountDownLatch(ctx(), latch, "p")
	if err := errors.Join(err, <-opened); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a latch was seen to be open after %v", took)
	}
	found := make(chan error, 1)
	go func() { found <- s.AwaitTasks(ctx(), aTask("").Queue, -1) }()
	began = time.Now()
	_, err = s.PutTask(ctx(), aTask("polled"))
	if err := errors.Join(err, <-found); err != nil {
		t.Error(err)
	}
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("a task was found after %v", took)
	}
}

// Without a right, those operations fail that the documentation names.
func TestMissingRights(t *testing.T) {
	t.Parallel()
	for right, want := range missingOnServer {
		t.Run(right, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			rights := slices.DeleteFunc(serverRights(t), func(r string) bool { return r == right })
			if len(rights) == len(serverRights(t)) {
				t.Fatal("the documentation does not list the right")
			}
			grant(t, server, rights...)
			log := new(logbook)
			s := newStore(t, asLockkeeper(t, server), log.option())
			_ = operations["decision"](t, s) // which loads the scripts
			for name, operate := range operations {
				err := operate(t, s)
				if failed := err != nil; failed != slices.Contains(want.fails, name) {
					t.Errorf("%s: %v", name, err)
				}
				if err != nil {
					wantUnavailable(t, err, false)
				}
			}
			if want.check != nil {
				want.check(t, server, s)
			}
			if want.logged != "" {
				eventually(t, 10*time.Second, "a warning", func() bool { return log.has(want.logged) })
			}
		})
	}
}

// If the nodes of a Cluster refuse COMMAND, the client sends it again before each call.
func TestMissingRightsOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	without := func(right string) *redisstore.Store {
		for _, server := range cluster.Servers {
			grant(t, server, slices.DeleteFunc(clusterRights(t), func(r string) bool { return r == right })...)
		}
		return newStore(t, asLockkeeperOn(t, cluster))
	}
	s := without("+cluster|slots")
	for name, operate := range operations {
		if name != "uptime" {
			wantUnavailable(t, operate(t, s), false)
		}
	}
	s = without("+command")
	for range 10 {
		must(t, operations["lock"](t, s))
	}
	for _, server := range cluster.Servers {
		must(t, server.Client().FlushAll(ctx()).Err())
	}
	s = without("+asking")
	wantUnavailable(t, decideWhileASlotMoves(t, cluster, newLimiter(t, s)), false)
	refused := 0
	for _, server := range cluster.Servers {
		stats, err := server.Client().Info(ctx(), "commandstats").Result()
		must(t, err)
		if _, rest, ok := strings.Cut(stats, "cmdstat_command:"); ok {
			_, rest, _ = strings.Cut(rest, "rejected_calls=")
			digits, _, _ := strings.Cut(rest, ",")
			n, _ := strconv.Atoi(digits)
			refused += n
		}
	}
	if refused < 20 {
		t.Errorf("COMMAND was refused %d times in 20 calls", refused)
	}
}

// The table of missing rights in the documentation has a row for each right, and no others.
func TestEachMissingRightIsDocumented(t *testing.T) {
	testpace.Parallel(t)
	rows := regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(documentation(t, "## What a missing right costs", "\n## "), -1)
	documented := make(map[string]bool)
	for _, row := range rows {
		documented[strings.ReplaceAll(row[1], `\|`, "|")] = true
	}
	for right := range missingOnServer {
		if !documented[right] {
			t.Errorf("no row says what %s is for", right)
		}
		delete(documented, right)
	}
	for _, right := range clusterRights(t)[len(serverRights(t)):] {
		delete(documented, right)
	}
	if len(documented) > 0 {
		t.Errorf("no test removes the rights %v", documented)
	}
}
