package delays

import (
	"context"
	"time"

	"github.com/hibiken/asynq"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
)

const kind = "bench" // of the tasks of peers

type asynqTasks struct {
	server asynq.RedisClientOpt
	client *asynq.Client
}

func openAsynq(_ context.Context, addr, _ string) (tasks, error) {
	server := asynq.RedisClientOpt{Addr: addr}
	return &asynqTasks{server, asynq.NewClient(server)}, nil
}

func (a *asynqTasks) put(ctx context.Context, all []task) error {
	return each(all, func(t task) error {
		_, err := a.client.EnqueueContext(ctx, asynq.NewTask(kind, payload(t.due)), asynq.TaskID(t.key), asynq.ProcessAt(t.due))
		return err
	})
}

func (a *asynqTasks) run(ctx context.Context, fn func(time.Time)) error {
	server := asynq.NewServer(a.server, asynq.Config{Concurrency: 10, LogLevel: asynq.FatalLevel})
	if err := server.Start(asynq.HandlerFunc(func(_ context.Context, t *asynq.Task) error {
		due, err := dueOf(t.Payload())
		if err == nil {
			fn(due)
		}
		return err
	})); err != nil {
		return err
	}
	<-ctx.Done()
	server.Shutdown()
	return nil
}

func (a *asynqTasks) close() { _ = a.client.Close() }

type riverTasks struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx] // inserts only
	config river.Config
}

func openRiver(ctx context.Context, dsn, _ string) (tasks, error) {
	return openRiverWith(ctx, dsn, 100, river.Config{})
}

func openFastRiver(ctx context.Context, dsn, _ string) (tasks, error) {
	return openRiverWith(ctx, dsn, 2_000, river.Config{FetchCooldown: 2 * time.Millisecond, FetchPollInterval: 20 * time.Millisecond})
}

func openRiverWith(ctx context.Context, dsn string, most int, config river.Config) (tasks, error) {
	pool, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet})
	if err != nil {
		pool.Close()
		return nil, err
	}
	config.Logger = quiet
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: most}}
	return &riverTasks{pool, client, config}, nil
}

func (r *riverTasks) put(ctx context.Context, all []task) error {
	params := make([]river.InsertManyParams, len(all))
	for i, t := range all {
		params[i].Args = riverJob{Key: t.key, Due: string(payload(t.due))}
		if time.Until(t.due) > 0 { // another one would be polled for, too
			params[i].InsertOpts = &river.InsertOpts{ScheduledAt: t.due}
		}
	}
	_, err := r.client.InsertMany(ctx, params)
	return err
}

func (r *riverTasks) run(ctx context.Context, fn func(time.Time)) error {
	config := r.config
	config.Workers = river.NewWorkers()
	river.AddWorker(config.Workers, &riverWorker{fn: fn})
	client, err := river.NewClient(riverpgxv5.New(r.pool), &config)
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(context.WithoutCancel(ctx))
}

func (r *riverTasks) close() { r.pool.Close() }

type riverJob struct {
	Key string `json:"key"`
	Due string `json:"due"`
}

// Kind implements river.JobArgs.
func (riverJob) Kind() string { return kind }

type riverWorker struct {
	river.WorkerDefaults[riverJob]
	fn func(due time.Time)
}

// Work implements river.Worker.
func (w *riverWorker) Work(_ context.Context, job *river.Job[riverJob]) error {
	due, err := dueOf([]byte(job.Args.Due))
	if err == nil {
		w.fn(due)
	}
	return err
}
