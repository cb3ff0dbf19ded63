// Stores has four processes increment a counter under a lock, one of which is killed and one is paused
// while they hold it, on any store:
//
//	go run ./examples/stores -store etcd
//	go run ./examples/stores -all
//
// It starts the server itself: redis-server, postgres, etcd or ZooKeeper, if they are installed. With
// -all it runs on all stores, one after the other, and prints what each of them took.
//
// A store in memory has no other processes. There, four goroutines of this process take their place:
// the killed one leaves without unlocking, the paused one stands still, and neither of them renews its lease, as no
// dead or paused process does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/redis/go-redis/v9"
)

func main() {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // processes and servers end on purpose
	redis.SetLogger(quiet{})
	workerMain()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// quiet is a logger of the Redis client.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// run is the program: it returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("stores", flag.ContinueOnError)
	flags.SetOutput(stderr)
	kind := flags.String("store", "memory", "the `store`: "+strings.Join(kinds, ", "))
	all := flags.Bool("all", false, "run on all stores whose servers are installed")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // it has been printed
		return 2
	case flags.NArg() > 0:
		_, _ = fmt.Fprintf(stderr, "stores: unexpected argument %q\n", flags.Arg(0))
		return 2
	case !slices.Contains(kinds, *kind):
		_, _ = fmt.Fprintf(stderr, "stores: no store %q: there are %s\n", *kind, strings.Join(kinds, ", "))
		return 2
	}
	chosen := []string{*kind}
	if *all {
		chosen = kinds
	}
	var rows []row
	code := 0
	for _, kind := range chosen {
		r, err := play(ctx, kind)
		r.note = verdict(r, err)
		rows = append(rows, r)
		switch {
		case *all && errors.Is(err, errNotInstalled):
		case err != nil, !r.sound():
			code = 1
		}
		if ctx.Err() != nil {
			break
		}
	}
	if err := writeTable(stdout, rows); err != nil {
		_, _ = fmt.Fprintln(stderr, "stores:", err)
		return 1
	}
	return code
}
