package main

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// receiptLease is shorter than the default of 30 s for the demonstration: the queue delivers again
// when the lease of the other delivery has ended.
const receiptLease = 2 * time.Second

// consumer sends the mails of a queue, each once.
type consumer struct {
	receipts *guard.Guard
	queue    *queue
	mailer   *mailer
	dead     deadLetters
}

func newConsumer(st store.Records, q *queue, m *mailer) (*consumer, error) {
	receipts, err := guard.New(st, "mails", guard.WithTTL(receiptLease), guard.WithRetention(remembered))
	if err != nil {
		return nil, err
	}
	return &consumer{receipts: receipts, queue: q, mailer: m}, nil
}

// run handles deliveries until ctx ends. Several goroutines, and several processes, may run.
func (c *consumer) run(ctx context.Context) {
	for {
		select {
		case m := <-c.queue.deliveries:
			c.consume(ctx, m)
		case <-ctx.Done():
			return
		}
	}
}

func (c *consumer) consume(ctx context.Context, m message) {
	err := guard.Once(ctx, c.receipts, guard.Operation{Key: m.ID}, func(ctx context.Context) error { return c.mail(ctx, m) })
	switch action, after := guard.Disposition(err); action {
	case guard.Acknowledge:
		c.queue.acknowledge()
	case guard.RetryLater:
		c.queue.giveBack(m, after)
	case guard.DeadLetter:
		c.dead.keep(m, err)
		c.queue.acknowledge()
	}
}

// mail sends a mail. The mail server does not recognise repeats, so what matters is whether sending has
// begun: an error before that is tried again, and one after it leaves an unknown outcome.
func (c *consumer) mail(ctx context.Context, m message) error {
	attempt, ok := guard.FromContext(ctx)
	if !ok {
		return errors.New("not called by guard.Once")
	}
	if err := attempt.MarkClean(ctx); err != nil {
		return errors.Join(err, attempt.Abandon(ctx)) // nothing was sent
	}
	if err := c.mailer.connect(m); err != nil {
		return err
	}
	if err := attempt.MarkDirty(ctx); err != nil {
		return errors.Join(err, attempt.Abandon(ctx)) // nothing was sent
	}
	return c.mailer.send(ctx, m)
}
