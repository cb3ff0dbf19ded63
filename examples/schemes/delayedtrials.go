package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
)

// task is the key of a task in the trials of delayed work.
const task = "order-42"

func poppedAndDied(ctx context.Context, s *stage) (finding, error) {
	a, b := s.process(), s.process()
	consumer := func(p *process) *popped { return &popped{p.client, s.key("tasks"), time.Now} }
	if err := consumer(a).put(ctx, task, 0); err != nil {
		return finding{}, err
	}
	if got, err := consumer(a).take(ctx); err != nil || got != task {
		return finding{}, errors.Join(err, fmt.Errorf("the task that was due is %q", got))
	}
	a.dieBefore("set")
	if err := a.client.Set(ctx, s.document(), "cancelled", 0).Err(); !errors.Is(err, errDied) {
		return finding{}, fmt.Errorf("a process lives on: %w", err)
	}
	if err := s.pass(ctx, 2*s.ttl); err != nil {
		return finding{}, err
	}
	if got, err := consumer(b).take(ctx); err != nil || got != "" {
		return finding{sound, "B had the task"}, err
	}
	return finding{broken, "the task was gone with A: B found none"}, nil
}

func expiredUnheard(ctx context.Context, s *stage) (finding, error) {
	if err := s.notifies(ctx); err != nil {
		return finding{}, err
	}
	p := s.process()
	q := &expiring{p.client, s.prefix}
	// expires puts a task, and waits until its time is over.
	expires := func(name string) (key string, err error) {
		if key, err = q.put(ctx, name, s.ttl/10); err == nil {
			err = s.awaitExpiry(ctx, p.client, key)
		}
		return key, err
	}
	a, err := q.listen(ctx)
	if err != nil {
		return finding{}, errors.Join(err, a.Close())
	}
	key, err := expires("first")
	if err != nil {
		return finding{}, errors.Join(err, a.Close())
	}
	_, err = heard(ctx, a, key)
	if err = errors.Join(err, a.Close()); err != nil {
		return finding{}, err
	}
	if key, err = expires(task); err != nil { // A is replaced by B at that time
		return finding{}, err
	}
	b, err := q.listen(ctx)
	defer func() { _ = b.Close() }()
	if err != nil {
		return finding{}, err
	}
	if err := b.Ping(ctx); err != nil {
		return finding{}, err
	}
	if ok, err := heard(ctx, b, key); err != nil || ok {
		return finding{sound, "B was notified"}, err
	}
	return finding{broken, "the key expired while nobody listened: B was never notified"}, nil
}

func clocksOfConsumers(ctx context.Context, s *stage) (finding, error) {
	start := time.Now()
	at := func(after time.Duration) *popped {
		return &popped{s.process().client, s.key("tasks"), func() time.Time { return start.Add(after) }}
	}
	if err := at(0).put(ctx, task, s.ttl); err != nil {
		return finding{}, err
	}
	early, err := at(2 * s.ttl).take(ctx) // at the start, by a clock that is fast by 2 ttl
	if err != nil {
		return finding{}, err
	}
	if err := at(0).put(ctx, "another", s.ttl); err != nil {
		return finding{}, err
	}
	late, err := at(0).take(ctx) // 2 ttl after the start, by a clock that is slow by as much
	if err != nil {
		return finding{}, err
	}
	if early != task || late != "" {
		return finding{sound, "both took their tasks in time"}, nil
	}
	text := fmt.Sprintf("B took one %v too early; C left one that had been due for %v", s.ttl, s.ttl)
	return finding{broken, text}, nil
}

func transferStopped(ctx context.Context, s *stage) (finding, error) {
	a, consumer := newTransferred(s, s.process()), newTransferred(s, s.process())
	running, stop := context.WithCancel(ctx)
	defer stop()
	closed, err := a.open(running)
	if err != nil {
		return finding{}, err
	}
	if err := a.put(ctx, "first", s.ttl/10); err != nil {
		return finding{}, err
	}
	for got := ""; got == ""; { // with A, it comes
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return finding{}, err
		}
		if got, err = consumer.take(ctx); err != nil {
			return finding{}, err
		}
	}
	if err := a.put(ctx, task, s.ttl/2); err != nil {
		return finding{}, err
	}
	stop() // A ends
	if err := await(ctx, closed); err != nil {
		return finding{}, err
	}
	if err := wait(ctx, s.ttl); err != nil {
		return finding{}, err
	}
	got, err := consumer.take(ctx)
	if err != nil || got != "" {
		return finding{sound, "the consumer had the task"}, err
	}
	if n, err := consumer.client.ZCard(ctx, consumer.set).Result(); err != nil || n != 1 {
		return finding{}, errors.Join(err, fmt.Errorf("%d tasks are in the set", n))
	}
	text := fmt.Sprintf("due for %v, and still in the set: the consumer's list stayed empty", s.ttl/2)
	return finding{broken, text}, nil
}

// queue is everything that a service does to use delayed tasks.
func (s *stage) queue(ctx context.Context, p *process) (*delay.Queue, error) {
	st, err := s.store(ctx, p)
	if err != nil {
		return nil, err
	}
	q, err := delay.New(st, "trial", delay.WithLease(s.ttl), delay.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, err
	}
	s.closer = append(s.closer, func() {
		p.revive() // so that it can settle what it has
		_ = q.Close()
	})
	return q, nil
}

// queues returns the queues of several processes.
func (s *stage) queues(ctx context.Context, processes ...*process) ([]*delay.Queue, error) {
	queues := make([]*delay.Queue, len(processes))
	for i, p := range processes {
		var err error
		if queues[i], err = s.queue(ctx, p); err != nil {
			return nil, err
		}
	}
	return queues, s.begin(ctx)
}

func keeperConsumerDied(ctx context.Context, s *stage) (finding, error) {
	dying := s.process()
	q, err := s.queues(ctx, dying, s.process())
	if err != nil {
		return finding{}, err
	}
	if _, err := q[0].Put(ctx, task, nil, 0); err != nil {
		return finding{}, err
	}
	a, err := q[0].Take(ctx)
	if err != nil {
		return finding{}, err
	}
	dying.dieBefore("")
	start := time.Now()
	b, err := q[1].Take(ctx)
	if err != nil {
		return finding{}, err
	}
	took := time.Since(start)
	if err := b.Done(ctx); err != nil {
		return finding{}, err
	}
	if b.ID() != a.ID() || b.Attempt() != 2 {
		return finding{broken, fmt.Sprintf("B had attempt %d at %s", b.Attempt(), b.Key())}, nil
	}
	dying.revive()
	if err := a.Done(ctx); !errors.Is(err, delay.ErrLost) {
		return finding{broken, fmt.Sprintf("A was told %v", err)}, nil
	}
	text := fmt.Sprintf("B had the task after %v, when A's lease was over; A got ErrLost", took.Round(time.Millisecond))
	return finding{sound, text}, nil
}

func keeperUnheard(ctx context.Context, s *stage) (finding, error) {
	q, err := s.queues(ctx, s.process(), s.process())
	if err != nil {
		return finding{}, err
	}
	if _, err := q[0].Put(ctx, task, nil, s.ttl/10); err != nil {
		return finding{}, err
	}
	if err := errors.Join(q[0].Close(), wait(ctx, s.ttl)); err != nil {
		return finding{}, err
	}
	b, err := q[1].Take(ctx)
	if err != nil {
		return finding{}, err
	}
	text := fmt.Sprintf("the store has the task: B, which took it later, had it %v late",
		b.Late().Round(time.Millisecond))
	return finding{sound, text}, b.Done(ctx)
}

func keeperClocksOfConsumers(ctx context.Context, s *stage) (finding, error) {
	p := s.process()
	q, err := s.queues(ctx, p)
	if err != nil {
		return finding{}, err
	}
	start := time.Now()
	if _, err := q[0].Put(ctx, task, nil, s.ttl); err != nil {
		return finding{}, err
	}
	b, err := q[0].Take(ctx)
	if err != nil {
		return finding{}, err
	}
	took := time.Since(start)
	if err := b.Done(ctx); err != nil {
		return finding{}, err
	}
	if took < s.ttl {
		return finding{broken, fmt.Sprintf("B had the task after %v", took)}, nil
	}
	if times := p.timesSent(); len(times) > 0 {
		return finding{broken, fmt.Sprintf("B sent the time of its clock: %v", times)}, nil
	}
	text := fmt.Sprintf("B had it %v late by the server's clock: clients send durations, never times of their clocks",
		b.Late().Round(time.Millisecond))
	return finding{sound, text}, nil
}

func keeperWithoutProducer(ctx context.Context, s *stage) (finding, error) {
	q, err := s.queues(ctx, s.process(), s.process())
	if err != nil {
		return finding{}, err
	}
	taken := make(chan *delay.Task, 1)
	failed := make(chan error, 1)
	go func() { // the consumer only takes
		b, err := q[1].Take(ctx)
		if err != nil {
			failed <- err
			return
		}
		taken <- b
	}()
	if _, err := q[0].Put(ctx, task, nil, s.ttl/2); err != nil {
		return finding{}, err
	}
	if err := q[0].Close(); err != nil { // A ends
		return finding{}, err
	}
	select {
	case b := <-taken:
		text := fmt.Sprintf("the consumer had it %v late: a take looks at the set itself",
			b.Late().Round(time.Millisecond))
		return finding{sound, text}, b.Done(ctx)
	case err := <-failed:
		return finding{}, err
	}
}
