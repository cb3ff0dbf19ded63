package guides_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// message is what a queue delivers, at least once.
type message struct{ ID, Order string }

// broker is what a consumer needs of the client of its queue.
type broker interface {
	ack(m message)                       // it is done
	nack(m message, after time.Duration) // deliver it again, after this time at the earliest
	deadLetter(m message, why error)     // keep it for a person, and deliver it no more
}

// consume handles one delivery. handle runs once for each message.
func consume(ctx context.Context, receipts *guard.Guard, b broker, m message, handle func(context.Context, message) error) {
	op := guard.Operation{Key: m.ID, Fingerprint: []byte(m.Order)}
	err := guard.Once(ctx, receipts, op, func(ctx context.Context) error { return handle(ctx, m) })
	switch action, after := guard.Disposition(err); action {
	case guard.Acknowledge:
		b.ack(m)
	case guard.RetryLater:
		b.nack(m, after)
	case guard.DeadLetter:
		b.deadLetter(m, err)
	}
}

// chargeOrder is the work of a message.
func chargeOrder(ctx context.Context, p *cardProvider, m message) error {
	attempt, ok := guard.FromContext(ctx)
	if !ok {
		return errors.New("not called by guard.Once")
	}
	// The same key in every attempt, so the provider charges once.
	return p.charge(ctx, attempt.OperationID(), m.Order)
}

// A provider recognises the keys of charges, so that the guard may run a charge again.
func Example_consumer() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New(client), for several processes
	defer store.Close()
	receipts, err := guard.New(store, "charges", guard.WithRetention(7*24*time.Hour), guard.WithRerun())
	if err != nil {
		panic(err)
	}

	provider := &cardProvider{loses: 1} // the first reply is lost, after the charge
	work := func(ctx context.Context, m message) error { return chargeOrder(ctx, provider, m) }
	for range 3 { // as at-least-once delivery may do
		consume(ctx, receipts, printed{}, message{ID: "m-1", Order: "42"}, work)
	}
	consume(ctx, receipts, printed{}, message{ID: "m-1", Order: "43"}, work) // an ID that was used twice
	consume(ctx, receipts, printed{}, message{Order: "44"}, work)            // no ID
	fmt.Println(provider.charged, "charged,", provider.calls, "calls")
	// Output:
	// order 42: again
	// order 42: done
	// order 42: done
	// order 43: dead letter: guard: key reused for another request
	// order 44: dead letter: guard: invalid operation: key is empty
	// [42] charged, 2 calls
}

// cardProvider charges an order once for each key.
type cardProvider struct {
	calls, loses  int
	keys, charged []string
}

func (p *cardProvider) charge(_ context.Context, key, order string) error {
	p.calls++
	if !slices.Contains(p.keys, key) {
		p.keys, p.charged = append(p.keys, key), append(p.charged, order)
	}
	if p.calls <= p.loses {
		return errors.New("no reply")
	}
	return nil
}

// printed is a broker that prints its calls.
type printed struct{}

func (printed) ack(m message)                   { fmt.Printf("order %s: done\n", m.Order) }
func (printed) nack(m message, _ time.Duration) { fmt.Printf("order %s: again\n", m.Order) }
func (printed) deadLetter(m message, why error) {
	fmt.Printf("order %s: dead letter: %v\n", m.Order, why)
}

// told is a broker that keeps what it is told last.
type told struct {
	what  guard.Action
	after time.Duration
	why   error
}

func (b *told) ack(message)                         { *b = told{what: guard.Acknowledge} }
func (b *told) nack(_ message, after time.Duration) { *b = told{what: guard.RetryLater, after: after} }
func (b *told) deadLetter(_ message, why error)     { *b = told{what: guard.DeadLetter, why: why} }

// What becomes of a message if the store, the work or the process fails, without WithRerun.
func TestConsumerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storetest.NewFaulty(memstore.New())
		defer func() { _ = store.Close() }()
		receipts := must(guard.New(store, "mails"))
		runs := 0
		consumed := func(id string, work func(context.Context) error) (b told) {
			consume(t.Context(), receipts, &b, message{ID: id}, func(ctx context.Context, _ message) error {
				runs++
				return work(ctx)
			})
			return b
		}
		succeed := func(context.Context) error { return nil }
		fail := func(context.Context) error { return errors.New("broken pipe") }

		store.Break(storetest.Any, storetest.Down)
		if b := consumed("m-1", succeed); b.what != guard.RetryLater || runs != 0 {
			t.Errorf("the store is down: %v, %d runs", b.what, runs)
		}
		store.Mend(storetest.Any)
		if b := consumed("m-1", succeed); b.what != guard.Acknowledge || runs != 1 {
			t.Errorf("the store is up again: %v, %d runs", b.what, runs)
		}

		if b := consumed("m-2", fail); b.what != guard.RetryLater {
			t.Errorf("the work failed: %v", b.what)
		}
		if b := consumed("m-2", succeed); b.what != guard.DeadLetter || !errors.Is(b.why, guard.ErrOutcomeUnknown) || runs != 2 {
			t.Errorf("the delivery after it: %v, %v, %d runs", b.what, b.why, runs)
		}

		var other told
		if b := consumed("m-3", func(context.Context) error {
			other = consumed("m-3", succeed) // another consumer is given the message
			return nil
		}); b.what != guard.Acknowledge || other.what != guard.RetryLater || other.after != 30*time.Second {
			t.Errorf("delivered during the work: %v after %v, and then %v", other.what, other.after, b.what)
		}
	})
}
