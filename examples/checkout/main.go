// Checkout is a small shop. Its customers are charged once, however often their browsers send the
// payment. It sells no more than it has in stock, however many buy at once, and it makes two
// reports at a time, however many are requested. Run it, which compiles for a minute the first time
// and prints nothing until then, open the address that it prints, and press the buttons:
//
//	go run ./examples/checkout
//
// A payment whose instance dies in the middle is run again by the next request with its key. With
// -reconcile that request asks the payment provider what became of it; with -console, it is refused
// until an operator has resolved the payment, on the page Operations of the console at /console/.
//
// With -redis, or -postgres, any number of instances behave as one:
//
//	go run ./examples/checkout -postgres postgres://shop:password@127.0.0.1:5432/shop
//
// With -postgres they make their tables in the schemas lk and checkout of that database, so their
// user needs the right to create schemas. An order and the record of its payment are then one
// transaction: an instance that is killed leaves both or neither.
//
// An order may also be placed without a payment. It takes its stock, and a timer cancels it and gives
// the stock back if it is not paid within the time of -unpaid, whichever instances are alive then.
//
// GET /metrics returns the metrics of an instance in Prometheus format; with -otel, traces and
// metrics are also exported.
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
	"os/signal"
	"syscall"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// shutdownTimeout is how long the program waits for requests in flight at shutdown. A payment takes
// a fraction of it.
const shutdownTimeout = 10 * time.Second

// tries is what a newcomer may do first. %[1]s is the address.
const tries = `three things to try:
  1. open http://%[1]s/ and press "Pay 20 times at once": one charge, and 19 replays of its answer
  2. press "Flash sale without it", and then "Flash sale with a lock": the shop sells too much, and then what it has
  3. without a browser, send this twice: curl -i -H 'X-User: me' -H 'Idempotency-Key: 1' -d '{"sku":"tea","quantity":1}' http://%[1]s/api/checkout
`

func main() {
	gin.SetMode(gin.ReleaseMode)
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("checkout", flag.ContinueOnError)
	flags.SetOutput(stderr)
	addr := flags.String("addr", "127.0.0.1:8080", "`address` to listen on; port 0 takes a free one")
	redisURL := demo.RedisFlag(flags)
	dsn := flags.String("postgres", "", "`DSN` of a PostgreSQL database for it instead, such as postgres://user:password@127.0.0.1:5432/shop")
	var to destination
	flags.Func("otel", "`where` traces and metrics go: stdout, or otlp, which is over HTTP to OTEL_EXPORTER_OTLP_ENDPOINT;\n"+
		"if not set, there are no traces; the metrics are at GET /metrics in any case, in the form of Prometheus", to.parse)
	var c config
	flags.Int64Var(&c.rate, "rate", 20, "`requests` per second that each client address may make")
	flags.Int64Var(&c.burst, "burst", 40, "`requests` that it may make at once after a pause")
	flags.DurationVar(&c.lease, "lease", 30*time.Second, "how `long` the payments, locks and places of an instance are kept after it dies")
	flags.DurationVar(&c.wait, "wait", 0, "how `long` a payment waits for the answer to another one with its key before it is refused")
	flags.DurationVar(&c.timeout, "timeout", 0, "how `long` a call of the store may take: 250ms with Redis and 1s with PostgreSQL if not set")
	flags.DurationVar(&c.unpaid, "unpaid", 15*time.Minute, "how `long` an order that was placed without a payment waits for it, before it is cancelled: 1s to 24h")
	operated := flags.Bool("console", false,
		"serve the console for operators at /console/, and refuse payments of unknown outcome until they are resolved there;\n"+
			"prints the operator's token")
	flags.Func("proxies", "`networks` of the proxies in front, such as 10.0.0.0/8,fd00::/8, whose X-Forwarded-For is the client's address", c.trust)
	flags.StringVar(&c.rules, "rules", "", "`file` with rules for the limiter api and the semaphores reports and public-reports, which is followed")
	flags.BoolVar(&c.reconcile, "reconcile", false, "ask the payment provider what became of them")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // it has been printed
		return 2
	case flags.NArg() > 0:
		_, _ = fmt.Fprintf(stderr, "checkout: unexpected argument %q\n", flags.Arg(0))
		return 2
	case *redisURL != "" && *dsn != "":
		_, _ = fmt.Fprintln(stderr, "checkout: -redis and -postgres exclude each other: the state is kept in one of them")
		return 2
	}
	if *operated {
		c.token = rand.Text()
	}
	if err := serve(*addr, *redisURL, *dsn, to, c, stdout, stderr); err != nil {
		_, _ = fmt.Fprintln(stderr, "checkout:", err)
		return 1
	}
	return 0
}

// serve handles requests until the program receives a signal to stop.
func serve(addr, redisURL, dsn string, to destination, c config, stdout, stderr io.Writer) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	telemetry, err := startTelemetry(ctx, to, stdout)
	if err != nil {
		return err
	}
	defer func() { // last, since the steps before emit telemetry too
		if err := telemetry.stop(); err != nil { // which is no failure of the shop
			_, _ = fmt.Fprintln(stderr, "checkout: some telemetry is lost:", err)
		}
	}()

	state, err := openState(ctx, redisURL, dsn, c.timeout, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, state.close()) }()

	if c.token != "" {
		c.console = console.New(state.store, console.Service(serviceName), console.Authorize(operators{c.token}.authorize))
		defer func() { err = errors.Join(err, c.console.Close()) }()
	}
	handler, timers, err := newHandler(ctx, state, telemetry.metrics, c)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("-addr: %w; port 0 takes a free one", err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	go timers()
	_, _ = fmt.Fprintf(stdout, "listening on http://%s (store: %s)\n", listener.Addr(), state.kind)
	if to != toStdout { // whose lines are for programs
		_, _ = fmt.Fprintf(stdout, tries, listener.Addr())
	}
	if c.console != nil {
		_, _ = fmt.Fprintf(stdout, "operator's console: http://%s/console/ (any user name; the password is the token)\n"+
			"operator's token: %s\n", listener.Addr(), c.token)
	}

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	stop() // a second signal ends the program at once

	// First no more requests, then what they have left to do, then (by the defer above) the store.
	ending, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	return errors.Join(server.Shutdown(ending), state.store.Shutdown(ending))
}

// state is everything that outlives a request.
type state struct {
	kind   string // "memory", "redis" or "postgres"
	store  store.Store
	ledger notebook // the provider's
	orders notebook
	shelf  shelf
	book   func(timers *delay.Queue) orderBook
	close  func() error
}

func openState(ctx context.Context, redisURL, dsn string, timeout time.Duration, stderr io.Writer) (state, error) {
	switch {
	case dsn != "":
		return openPostgres(ctx, dsn, timeout, stderr)
	case redisURL != "":
		return openRedis(ctx, redisURL, timeout, stderr)
	}
	st, notes, shelf := memstore.New(), newMemoryNotebook(), newMemoryShelf()
	book := func(timers *delay.Queue) orderBook { return apartBook{newMemoryOrders(shelf), timers} }
	return state{"memory", st, notes, notes, shelf, book, st.Close}, nil
}

func openRedis(ctx context.Context, redisURL string, timeout time.Duration, stderr io.Writer) (state, error) {
	options, err := demo.ParseURL(redisURL)
	if err != nil {
		return state{}, err
	}
	// Redis replies in far less than this, or is down; callers should not wait long to learn that.
	// Settings in the URL take precedence.
	options.DialTimeout = cmp.Or(options.DialTimeout, redisTimeout)
	options.ReadTimeout = cmp.Or(options.ReadTimeout, redisTimeout)
	options.WriteTimeout = cmp.Or(options.WriteTimeout, redisTimeout)
	options.ContextTimeoutEnabled = true

	client := redis.NewClient(options)
	shelf, err := newRedisShelf(client)
	if err != nil {
		return state{}, errors.Join(err, client.Close())
	}
	var opts []redisstore.Option
	if timeout != 0 {
		opts = append(opts, redisstore.WithTimeout(timeout))
	}
	st, err := redisstore.New(client, opts...)
	if err != nil {
		return state{}, errors.Join(err, client.Close())
	}
	if err := st.Ping(ctx); err != nil {
		// No reason to stop: requests are refused with 503 until it is up.
		_, _ = fmt.Fprintf(stderr, "checkout: redis at %s does not reply yet: %v\n", options.Addr, err)
	}
	notes := redisNotebook{client}
	book := func(timers *delay.Queue) orderBook { return apartBook{redisOrders{client}, timers} }
	return state{"redis", st, notes, notes, shelf, book, func() error {
		return errors.Join(st.Close(), client.Close()) // the client is ours, not the store's
	}}, nil
}
