package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen on; port 0 takes a free one")
	redisURL := demo.RedisFlag(flag.CommandLine)
	flag.Parse()
	if err := serve(*addr, *redisURL); err != nil {
		log.Fatal(err)
	}
}

// serve handles requests until the program receives a signal to stop. It then shuts down in order:
// the server, what requests have left to do, the store.
func serve(addr, redisURL string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	st, _, closeStore, err := demo.OpenStore(ctx, redisURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("-addr: %w", err)
	}
	// A client that sends its cart slowly blocks others for at most this long.
	server := &http.Server{Handler: newShop(st), ReadTimeout: 10 * time.Second}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	fmt.Printf("listening on http://%s\n", listener.Addr())

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return errors.Join(server.Shutdown(ending), st.Shutdown(ending))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
