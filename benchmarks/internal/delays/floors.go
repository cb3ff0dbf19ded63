package delays

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// The rows of the fewest steps.
const (
	scriptsFloor    = "two scripts of a GET and a SET and a ZADD each, in pipelines of ten (the floor)"
	statementsFloor = "three plain statements for ten (the floor)"
	timersFloor     = "a timer and a plain UPDATE for each (the floor)"
)

// plain takes a batch of tasks from its put to its end.
type plain struct {
	pass  func(ctx context.Context, keys []string) error
	close func()
}

// plainRedis sends a script for a put, one for a take, and a ZADD, each of them for all keys in a
// pipeline.
func plainRedis(ctx context.Context, addr string) (*plain, error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	script := redis.NewScript("redis.call('GET', KEYS[1]) return redis.call('SET', KEYS[1], ARGV[1])")
	if err := script.Load(ctx, client).Err(); err != nil {
		_ = client.Close()
		return nil, err
	}
	value := payload(time.Now())
	put := func(p redis.Pipeliner, key string) { script.EvalSha(ctx, p, []string{key}, value) }
	end := func(p redis.Pipeliner, key string) { p.ZAdd(ctx, "plain", redis.Z{Score: 1, Member: key}) }
	return &plain{func(ctx context.Context, keys []string) error {
		for _, step := range []func(redis.Pipeliner, string){put, put, end} {
			if _, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
				for _, key := range keys {
					step(p, key)
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	}, func() { _ = client.Close() }}, nil
}

// timers inserts a row for each task of a plan, and takes each by a plain UPDATE at the time at which it is
// due. It returns how late the updates have ended.
func timers(ctx context.Context, dsn string, p plan) (late []time.Duration, err error) {
	pool, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	var (
		mu    sync.Mutex
		takes errgroup.Group
	)
	err = p.put(func(t task) error {
		if _, err := pool.Exec(ctx, "INSERT INTO plain_tasks (queue, key, due, payload) VALUES ('timers', $1, $2, $3)",
			[]byte(t.key), t.due.UnixMicro(), payload(t.due)); err != nil {
			return err
		}
		takes.Go(func() error {
			<-time.After(time.Until(t.due))
			tag, err := pool.Exec(ctx, "UPDATE plain_tasks SET owner = 'owner', due = due + 5000000 WHERE queue = 'timers' AND key = $1", []byte(t.key))
			if err == nil && tag.RowsAffected() != 1 {
				err = fmt.Errorf("task %s is not there", t.key)
			}
			mu.Lock()
			defer mu.Unlock()
			late = append(late, time.Since(t.due))
			return err
		})
		return nil
	})
	return late, errors.Join(err, takes.Wait())
}

const plainTable = `
CREATE TABLE plain_tasks (queue text, key bytea, due bigint NOT NULL, owner text, payload bytea NOT NULL, PRIMARY KEY (queue, key));
CREATE INDEX ON plain_tasks (queue, due);`

// plainPostgres inserts, updates and deletes all rows in a statement each.
func plainPostgres(ctx context.Context, dsn string) (*plain, error) {
	pool, err := connect(ctx, dsn)
	if err != nil {
		return nil, err
	}
	return &plain{func(ctx context.Context, keys []string) error { return passStatements(ctx, pool, keys) }, pool.Close}, nil
}

func passStatements(ctx context.Context, pool *pgxpool.Pool, keys []string) error {
	texts, payloads := make([][]byte, len(keys)), make([][]byte, len(keys))
	for i, key := range keys {
		texts[i], payloads[i] = []byte(key), payload(time.Now())
	}
	if _, err := pool.Exec(ctx, "INSERT INTO plain_tasks (queue, key, due, payload) SELECT 'plain', k, $3, p FROM unnest($1::bytea[], $2::bytea[]) u (k, p)",
		texts, payloads, time.Now().UnixMicro()); err != nil {
		return err
	}
	rows, err := pool.Query(ctx, "UPDATE plain_tasks SET owner = 'owner', due = due + 5000000 WHERE ctid = ANY (ARRAY(SELECT ctid FROM plain_tasks "+
		"WHERE queue = 'plain' AND due <= $1 ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING key, payload",
		time.Now().UnixMicro(), len(keys))
	if err != nil {
		return err
	}
	var (
		taken        [][]byte
		key, content []byte
	)
	for rows.Next() {
		if err := rows.Scan(&key, &content); err != nil {
			return err
		}
		taken = append(taken, append([]byte(nil), key...))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	tag, err := pool.Exec(ctx, "DELETE FROM plain_tasks WHERE queue = 'plain' AND key = ANY ($1)", taken)
	if err == nil && tag.RowsAffected() != int64(len(taken)) {
		err = fmt.Errorf("%d of %d rows are gone", len(taken)-int(tag.RowsAffected()), len(taken))
	}
	return err
}
