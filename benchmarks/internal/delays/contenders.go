package delays

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// The rows.
const (
	onRedis        = "Lockkeeper on Redis"
	onPostgres     = "Lockkeeper on PostgreSQL"
	inTransactions = "Lockkeeper on PostgreSQL, puts in transactions of ten"
	asynqRow       = "asynq"
	riverRow       = "river"
	riverFast      = "river, with the settings of its benchmark"
)

// contender is Lockkeeper or a peer.
type contender struct {
	row      string
	postgres bool // it is on PostgreSQL, not on Redis
	open     func(ctx context.Context, addr, name string) (tasks, error)
}

// tasks are those of one queue.
type tasks interface {
	// put puts tasks that are due at these times; at once if they are past.
	put(ctx context.Context, all []task) error
	// run calls fn with the time at which a task was due, and returns after the context has ended
	// and the calls are settled.
	run(ctx context.Context, fn func(due time.Time)) error
	close()
}

type task struct {
	key string
	due time.Time
}

func contenders() []contender {
	return []contender{
		{row: onRedis, open: openRedis},
		{row: asynqRow, open: openAsynq},
		{row: onPostgres, postgres: true, open: openPostgres},
		{row: inTransactions, postgres: true, open: openTransactions},
		{row: riverRow, postgres: true, open: openRiver},
		{row: riverFast, postgres: true, open: openFastRiver},
	}
}

// those returns the contenders of these rows.
func those(rows ...string) (some []contender) {
	for _, row := range rows {
		for _, c := range contenders() {
			if c.row == row {
				some = append(some, c)
			}
		}
	}
	return some
}

// ours is a queue of Lockkeeper.
type ours struct {
	queue *delay.Queue
	end   func() // closes what is below it
}

// timeout is that of Lockkeeper's calls, so that a busy machine does not end a measurement.
const timeout = 5 * time.Second

func openRedis(_ context.Context, addr, name string) (tasks, error) {
	client, st, err := openStore(addr)
	if err != nil {
		return nil, err
	}
	return newOurs(st, name, func() {
		_ = st.Close()
		_ = client.Close()
	})
}

func openStore(addr string) (*redis.Client, *redisstore.Store, error) {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, ReadTimeout: timeout, WriteTimeout: timeout})
	st, err := redisstore.New(client, redisstore.WithTimeout(timeout))
	if err != nil {
		_ = client.Close()
	}
	return client, st, err
}

func openPostgres(_ context.Context, dsn, name string) (tasks, error) {
	st, err := pgstore.New(dsn, pgstore.WithTimeout(timeout), pgstore.WithLogger(quiet))
	if err != nil {
		return nil, err
	}
	return newOurs(st, name, func() { _ = st.Close() })
}

func newOurs(st store.Delays, name string, end func()) (*ours, error) {
	q, err := delay.New(st, name, delay.WithLogger(quiet), delay.WithMaxTasks(2*million))
	if err != nil {
		end()
		return nil, err
	}
	return &ours{q, end}, nil
}

// put puts all tasks at the same time: a store batches such calls.
func (o *ours) put(ctx context.Context, all []task) error {
	return each(all, func(t task) error {
		_, err := o.queue.Put(ctx, t.key, payload(t.due), max(time.Until(t.due), 0))
		return err
	})
}

func (o *ours) run(ctx context.Context, fn func(time.Time)) error {
	err := o.queue.Run(ctx, workers*batch, func(_ context.Context, t *delay.Task) error {
		due, err := dueOf(t.Payload())
		if err == nil {
			fn(due)
		}
		return err
	})
	if ctx.Err() == nil {
		return err
	}
	return nil
}

func (o *ours) close() {
	_ = o.queue.Close()
	o.end()
}

// transactions puts each batch in a transaction, as an application does with what it changes.
type transactions struct {
	*ours
	pool *pgxpool.Pool
}

func openTransactions(ctx context.Context, dsn, name string) (tasks, error) {
	pool, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	t, err := openPostgres(ctx, dsn, name)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &transactions{t.(*ours), pool}, nil
}

func (x *transactions) put(ctx context.Context, all []task) error {
	return pgx.BeginFunc(ctx, x.pool, func(tx pgx.Tx) error {
		for _, t := range all {
			if _, err := pgstore.PutTask(ctx, tx, x.queue, t.key, payload(t.due), max(time.Until(t.due), 0)); err != nil {
				return err
			}
		}
		return nil
	})
}

func (x *transactions) close() {
	x.ours.close()
	x.pool.Close()
}

// payload is the text of a time.
func payload(due time.Time) []byte { return fmt.Appendf(nil, "%020d", due.UnixNano()) }

func dueOf(payload []byte) (time.Time, error) {
	ns, err := strconv.ParseInt(string(payload), 10, 64)
	return time.Unix(0, ns), err
}

// each calls fn for all tasks at the same time.
func each(all []task, fn func(task) error) error {
	var group errgroup.Group
	for _, t := range all {
		group.Go(func() error { return fn(t) })
	}
	return group.Wait()
}
