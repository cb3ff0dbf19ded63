package pgstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

const (
	crashDSN  = "PGSTORE_TEST_CRASH_DSN"
	crashHow  = "PGSTORE_TEST_CRASH_HOW"
	crashFrom = "PGSTORE_TEST_CRASH_FROM"
	// crashOperations sets the number of operations of TestOperationCrashes.
	crashOperations = "LOCKKEEPER_TEST_OPERATIONS"
)

// crashed is a test of operations whose processes, and whose server, are killed over and over.
type crashed struct {
	operations int
	mu         sync.Mutex
	values     map[int]string // of operations that a process has seen succeed
	next       int            // all before it have succeeded
	wrong      []string
	progress   chan struct{} // has an element if any has succeeded since it was emptied
}

// succeeded records what a process has written: the number of an operation, and its value.
func (c *crashed) succeeded(line string) {
	number, value, ok := strings.Cut(line, " ")
	n, err := strconv.Atoi(number)
	if !ok || err != nil { // the end of one that was killed
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if before, ok := c.values[n]; ok && before != value {
		c.wrong = append(c.wrong, fmt.Sprintf("operation %d returned %s, and %s before", n, value, before))
	}
	c.values[n] = value
	select {
	case c.progress <- struct{}{}:
	default:
	}
	for c.values[c.next] != "" {
		c.next++
	}
}

func (c *crashed) from() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

// run runs a process until it has seen all operations succeed. It is killed soon after the first one,
// and started again.
func (c *crashed) run(t *testing.T, dsn, how string) (kills int) {
	for ; ; kills++ {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestOperationCrashProcess$") //nolint:gosec // the test's own binary
		cmd.Env = append(os.Environ(), crashDSN+"="+dsn, crashHow+"="+how, crashFrom+"="+strconv.Itoa(c.from()), crashOperations+"="+strconv.Itoa(c.operations))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Error(err)
			return kills
		}
		kill := func() { _ = cmd.Process.Kill() }
		later := time.AfterFunc(time.Hour, kill)
		lines, done := bufio.NewScanner(out), false
		for first := true; lines.Scan(); first = false {
			if first {
				later.Reset(rand.N(1200 * time.Millisecond))
			}
			done = done || lines.Text() == "done"
			c.succeeded(lines.Text())
		}
		later.Stop()
		_ = cmd.Wait()
		if done || t.Context().Err() != nil {
			return kills
		}
	}
}

// TestOperationCrashes kills processes and the server with SIGKILL while they run operations, each of which
// two processes run. Every operation has had its effect once, and nothing is unknown.
func TestOperationCrashes(t *testing.T) {
	t.Parallel()
	c := crashed{operations: 1000}
	if n, err := strconv.Atoi(os.Getenv(crashOperations)); err == nil {
		c.operations = n
	}
	for _, how := range []string{"Do", "Complete"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			c := crashed{operations: c.operations, values: make(map[int]string), progress: make(chan struct{}, 1)}
			server := postgrestest.Start(t)
			migrateIn(t, server.DSN())
			administer(t, server.DSN(), "CREATE TABLE orders (id text, key text)")
			ctx, cancel := context.WithCancel(t.Context())
			var processes, killer sync.WaitGroup
			serverKills := 0
			killer.Go(func() {
				for {
					select {
					case <-c.progress: // since the last one: a slow machine has to get on
					case <-ctx.Done():
						return
					}
					select {
					case <-time.After(time.Second + rand.N(time.Second)):
						server.Restart() // kill -9 of all its processes
						serverKills++
						select {
						case <-c.progress: // from before
						default:
						}
					case <-ctx.Done():
						return
					}
				}
			})
			kills := make([]int, 2)
			for i := range kills {
				processes.Go(func() { kills[i] = c.run(t, server.DSN(), how) })
			}
			processes.Wait()
			cancel()
			killer.Wait()
			t.Logf("%d operations, %d kills of processes, %d of the server", c.operations, kills[0]+kills[1], serverKills)
			c.check(t, server.DSN())
		})
	}
}

// check compares the orders with what the processes have seen.
func (c *crashed) check(t *testing.T, dsn string) {
	for _, wrong := range c.wrong {
		t.Error(wrong)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	count := func(text string) (n int) {
		if err := conn.QueryRow(t.Context(), text).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count("SELECT count(*) FROM (SELECT key FROM orders GROUP BY key HAVING count(*) > 1) twice"); n > 0 {
		t.Errorf("%d operations had their effect more than once", n)
	}
	if n := count("SELECT count(DISTINCT key) FROM orders"); n != c.operations {
		t.Errorf("%d of %d operations had their effect", n, c.operations)
	}
	if n := count("SELECT count(*) FROM lk.operations WHERE state NOT IN ('C', 'A')"); n > 0 {
		t.Errorf("%d operations are of unknown outcome", n)
	}
	if n := count("SELECT count(*) FROM lk.operations WHERE state = 'C'"); n != c.operations {
		t.Errorf("%d of %d operations have a result", n, c.operations)
	}
	rows, err := conn.Query(t.Context(), "SELECT key, id FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	var key, id string
	_, err = pgx.ForEachRow(rows, []any{&key, &id}, func() error {
		n, err := strconv.Atoi(key)
		if err == nil && c.values[n] != id {
			t.Errorf("operation %s returned %q, and its effect was %q", key, c.values[n], id)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOperationCrashProcess is one of the processes of TestOperationCrashes.
func TestOperationCrashProcess(t *testing.T) {
	dsn := os.Getenv(crashDSN)
	if dsn == "" {
		t.Skip("a process of TestOperationCrashes")
	}
	quiet := slog.New(slog.DiscardHandler)
	s, err := New(dsn, WithLogger(quiet))
	if err != nil {
		t.Fatal(err)
	}
	opts := []guard.Option{guard.WithTTL(500 * time.Millisecond), guard.WithLogger(quiet)}
	place := doOrder
	if os.Getenv(crashHow) == "Complete" {
		place, opts = completeOrder, append(opts, guard.WithRerun())
	}
	g, err := guard.New(s, "orders", opts...)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := pgxpool.New(t.Context(), dsn+"&pool_max_conns=8&statement_timeout=5000&connect_timeout=2")
	if err != nil {
		t.Fatal(err)
	}
	from, _ := strconv.Atoi(os.Getenv(crashFrom))
	operations, _ := strconv.Atoi(os.Getenv(crashOperations))
	var (
		wg      sync.WaitGroup
		numbers = make(chan int)
		out     sync.Mutex
	)
	for range 6 {
		wg.Go(func() {
			for n := range numbers {
				for {
					value, err := place(t.Context(), g, pool, strconv.Itoa(n))
					if err == nil {
						out.Lock()
						_, _ = io.WriteString(os.Stdout, fmt.Sprintf("%d %s\n", n, value))
						out.Unlock()
						break
					}
					if errors.Is(err, guard.ErrOutcomeUnknown) {
						panic(err)
					}
					time.Sleep(rand.N(20 * time.Millisecond))
				}
			}
		})
	}
	for n := from; n < operations; n++ {
		numbers <- n
	}
	close(numbers)
	wg.Wait()
	_, _ = io.WriteString(os.Stdout, "done\n")
}

// newID returns an ID of an order.
func newID() string { return strconv.FormatUint(rand.Uint64(), 36) }

func doOrder(ctx context.Context, g *guard.Guard, pool *pgxpool.Pool, key string) (string, error) {
	id, _, err := Do(ctx, g, guard.Operation{Key: key, Wait: time.Second}, pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
		id := newID()
		_, err := tx.Exec(ctx, insertOrder, id, key)
		return id, err
	})
	return id, err
}

// completeOrder does it by hand. The guard may run it again, since its transaction is undone if it dies.
func completeOrder(ctx context.Context, g *guard.Guard, pool *pgxpool.Pool, key string) (id string, err error) {
	a, result, err := g.Begin(ctx, guard.Operation{Key: key, Wait: time.Second})
	switch {
	case err != nil:
		return "", err
	case result != nil:
		return string(result.Data), nil
	}
	for range 100 { // a commit of unknown outcome is followed by another transaction
		id = newID()
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, insertOrder, id, key); err != nil {
				return err
			}
			return Complete(ctx, tx, a, guard.Result{Data: []byte(id)})
		})
		switch {
		case err == nil:
			return id, a.Complete(ctx, guard.Result{Data: []byte(id)})
		case errors.Is(err, guard.ErrSettled), errors.Is(err, guard.ErrLost):
			return "", err // Begin has the result
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = a.CompleteUnknown(ctx)
	return "", err
}
