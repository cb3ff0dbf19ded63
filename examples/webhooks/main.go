// Webhooks receives the events of a payment provider, and sends mails about them from a queue. The
// provider delivers each event twice, not in order, and again after a 5xx; the queue delivers each
// message at least twice. Each event and each mail is handled once all the same:
//
//	go run ./examples/webhooks
//
// It plays that through and says what happened. receiver.go and consumer.go are the parts to copy,
// outside.go pretends to be everything else. With -redis, the guards keep their records there.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is the program: it returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("webhooks", flag.ContinueOnError)
	flags.SetOutput(stderr)
	redisURL := demo.RedisFlag(flags)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // it has been printed
		return 2
	case flags.NArg() > 0:
		_, _ = fmt.Fprintf(stderr, "webhooks: unexpected argument %q\n", flags.Arg(0))
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := play(ctx, *redisURL, stdout); err != nil {
		_, _ = fmt.Fprintln(stderr, "webhooks:", err)
		return 1
	}
	return 0
}

// play lets the provider and the queue deliver, and reports what became of it.
func play(ctx context.Context, redisURL string, stdout io.Writer) (err error) {
	st, _, closeStore, err := demo.OpenStore(ctx, redisURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()

	payments, queue, mailer := newPayments(), newQueue(), newMailer()
	receiver, err := newReceiver(st, []byte(rand.Text()), payments, queue)
	if err != nil {
		return err
	}
	consumer, err := newConsumer(st, queue, mailer)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST /webhooks/payments", receiver)
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	for range 2 {
		running.Go(func() { consumer.run(ctx) })
	}
	defer func() {
		stop()
		err = errors.Join(err, server.Close())
		running.Wait()
	}()

	provider := &provider{url: "http://" + listener.Addr().String() + "/webhooks/payments", secret: receiver.secret}
	suffix := rand.Text()[:8] // another run on the same Redis has other events
	tea, coffee := "tea-"+suffix, "coffee-"+suffix
	payments.failOnce(tea, 3)
	mailer.refuseOnce(textOf(coffee, "created"))
	mailer.breakOnce(textOf(coffee, "paid"))
	for _, e := range []event{
		{ID: "evt-1-" + suffix, Payment: tea, Version: 2, Status: "paid"},
		{ID: "evt-2-" + suffix, Payment: tea, Version: 1, Status: "created"}, // late
		{ID: "evt-3-" + suffix, Payment: tea, Version: 3, Status: "refunded"},
		{ID: "evt-4-" + suffix, Payment: coffee, Version: 1, Status: "created"},
		{ID: "evt-5-" + suffix, Payment: coffee, Version: 2, Status: "paid"},
		{Payment: "cake-" + suffix, Version: 1, Status: "created"}, // without an ID
	} {
		if err := provider.deliver(ctx, e); err != nil {
			return err
		}
	}
	forger := provider.withSecret([]byte("guessed"))
	status, _, err := forger.post(ctx, event{ID: "evt-6-" + suffix, Payment: tea, Version: 9, Status: "free"})
	if err != nil || status != http.StatusUnauthorized {
		return fmt.Errorf("a forged event was answered %d: %w", status, cmp.Or(err, errWrong))
	}
	queue.send(message{Text: "a mail without an ID"})
	if err := queue.wait(ctx); err != nil {
		return err
	}
	resolved, err := resolve(ctx, consumer, queue, mailer)
	if err != nil {
		return err
	}
	if err := queue.wait(ctx); err != nil {
		return err
	}

	deliveries, repeated := provider.counts()
	handled, older := payments.counts()
	sent, most := mailer.counts()
	_, _ = fmt.Fprintf(stdout, `provider  6 events, each sent twice, out of order: %d deliveries, %d of them repeated after a 503
receiver  %d events handled once, and %d more ignored as older than what was known
          %d deliveries without an ID kept for a person; a forged event refused
queue     5 messages, each delivered at least twice: %d deliveries, %d of them returned
consumer  %d mails sent, none more than %d times
          %d deliveries without an ID kept for a person; %d mail of unknown outcome, which a person resolved
`, deliveries, repeated, handled, older, len(receiver.dead.all()), queue.delivered.Load(), queue.returned.Load(),
		sent, most, len(consumer.dead.all()), resolved)
	if handled != 4 || older != 1 || sent != 4 || most != 1 || resolved != 1 ||
		payments.status(tea) != "refunded" || payments.status(coffee) != "paid" {
		return errWrong
	}
	return nil
}

var errWrong = errors.New("this is not what should have happened")

// resolve is a person who looks at the dead letters. It returns how many mails of unknown outcome have
// been resolved and delivered again.
func resolve(ctx context.Context, c *consumer, q *queue, m *mailer) (resolved int, err error) {
	for _, letter := range c.dead.all() {
		var unknown *guard.UnknownError
		if !errors.As(letter.err, &unknown) {
			continue // it waits for a programmer
		}
		record, err := c.receipts.InspectID(ctx, unknown.ID)
		if err != nil {
			return resolved, err
		}
		how := guard.NeverHappened()
		if m.hasSent(letter.message.ID) {
			how = guard.Happened(guard.Result{})
		}
		if err := c.receipts.Resolve(ctx, record, how, "operator", "the mail server's log"); err != nil {
			return resolved, err
		}
		resolved++
		c.dead.remove(letter)
		q.send(letter.message)
	}
	return resolved, nil
}
