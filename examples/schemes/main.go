// Schemes shows how locks and delayed work are commonly built on Redis, how each of them fails, and
// what Lockkeeper does in the same situation:
//
//	go run ./examples/schemes
//
// It starts the Redis servers that it needs in its own process. With -redis it uses a real one, and
// real time, for every trial that needs a single server; it deletes its keys there, and sets
// notify-keyspace-events for the time of a trial.
//
// With -stores it compares locks by where they are kept: a row of PostgreSQL, one Redis, Redlock,
// ZooKeeper and etcd, each with the lock that it is known for and with Lockkeeper. It starts real
// servers for that, of the installed ones.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it returns its exit code.
func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("schemes", flag.ContinueOnError)
	flags.SetOutput(stderr)
	redisURL := flags.String("redis", "", "`URL` of a Redis server to use, such as redis://127.0.0.1:6379/0")
	stores := flags.Bool("stores", false, "compare locks by where they are kept, on the servers that are installed")
	ttl := flags.Duration("ttl", 0, "how `long` the lease of each lock is: 500ms by default, or 2s with -stores")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // it has been printed
		return 2
	case flags.NArg() > 0:
		_, _ = fmt.Fprintf(stderr, "schemes: unexpected argument %q\n", flags.Arg(0))
		return 2
	case *stores && *redisURL != "":
		_, _ = fmt.Fprintln(stderr, "schemes: -stores starts its own servers, so it takes no -redis")
		return 2
	}
	least, usual := 100*time.Millisecond, 500*time.Millisecond
	if *stores {
		least, usual = time.Second, 2*time.Second
	}
	*ttl = cmp.Or(*ttl, usual)
	if *ttl < least || *ttl > time.Minute {
		_, _ = fmt.Fprintf(stderr, "schemes: a ttl of %v is not between %v and 1m\n", *ttl, least)
		return 2
	}
	var given *redis.Options
	if *redisURL != "" {
		var err error
		if given, err = demo.ParseURL(*redisURL); err != nil {
			_, _ = fmt.Fprintln(stderr, "schemes:", err)
			return 2
		}
	}
	redis.SetLogger(quiet{}) // servers are killed here on purpose
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	play := func() ([]row, error) { return playAll(ctx, given, *ttl) }
	if *stores {
		play = func() ([]row, error) { return compare(ctx, *ttl) }
	}
	rows, err := play()
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "schemes:", err)
		return 1
	}
	if err := writeTable(stdout, rows); err != nil {
		_, _ = fmt.Fprintln(stderr, "schemes:", err)
		return 1
	}
	text, ok := summary(rows)
	_, _ = fmt.Fprintln(stdout, text)
	if *stores {
		_, _ = fmt.Fprintln(stdout, majority)
	}
	if !ok {
		return 1
	}
	return 0
}

// quiet is a logger of the Redis client.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// playAll runs every trial, first on the schemes and then on Lockkeeper, side by side.
func playAll(ctx context.Context, given *redis.Options, ttl time.Duration) (rows []row, err error) {
	all := "schemes-" + rand.Text()
	if given != nil {
		if err := ping(ctx, given); err != nil {
			return nil, err
		}
		defer func() {
			cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			err = errors.Join(err, sweep(cleanup, given, all))
		}()
	}
	for _, t := range trials() {
		rows = append(rows, row{trial: t})
	}
	playSide := func(name string, main *server, side func(*row) (side, *finding), wanted func(verdict) bool) error {
		var wg sync.WaitGroup
		errs := make([]error, len(rows))
		p := newPace(main, len(rows))
		for i := range rows {
			play, found := side(&rows[i])
			wg.Go(func() {
				var err error
				if *found, err = p.play(ctx, fmt.Sprint(all, ":", name, i), ttl, play, wanted); err != nil {
					errs[i] = fmt.Errorf("%s, %s: %s: %w", rows[i].trial.scheme, rows[i].trial.name, name, err)
				}
			})
		}
		wg.Wait()
		return errors.Join(errs...)
	}
	var main *server // for each scheme one of its own, whose clock it advances
	if given != nil {
		main = &server{options: *given}
	}
	err = playSide("scheme", main, func(r *row) (side, *finding) { return r.trial.classic, &r.classic }, verdict.fails)
	if err != nil {
		return nil, err
	}
	house := &stage{}
	defer house.close()
	if main == nil {
		if main, err = house.newServer(); err != nil {
			return nil, err
		}
	}
	err = playSide("lockkeeper", main, func(r *row) (side, *finding) { return r.trial.keeper, &r.keeper }, verdict.holds)
	return rows, err
}
