package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"

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

// serve handles calls until the program receives a signal to stop. It then shuts down in order: the
// server, what calls have left to do, the store.
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
	server := newShop(st)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	fmt.Printf("listening on %s\n", listener.Addr())

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	context.AfterFunc(ending, server.Stop) // streams may never end by themselves
	server.GracefulStop()
	return st.Shutdown(ending)
}

func authenticate(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	if isProbe(info.FullMethod) {
		return handler(ctx, req)
	}
	ctx, err := withUser(ctx)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func authenticateStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if isProbe(info.FullMethod) {
		return handler(srv, ss)
	}
	ctx, err := withUser(ss.Context())
	if err != nil {
		return err
	}
	return handler(srv, authenticated{ss, ctx})
}

// authenticated is a stream whose context has the user.
type authenticated struct {
	grpc.ServerStream
	ctx context.Context
}

func (s authenticated) Context() context.Context { return s.ctx }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
