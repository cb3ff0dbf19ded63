// Package demo is what the examples have in common: the store, and, if they have a page, flags, the
// server, and the pages' files.
package demo

import (
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// shutdownTimeout is how long requests in flight may take at shutdown.
const shutdownTimeout = 10 * time.Second

// Program is an example.
type Program struct {
	Flags *flag.FlagSet // its own, named after it; Run adds -addr and -redis
	// Handler returns what serves requests, and what ends it after the last one.
	Handler func(st store.Store) (h http.Handler, end func(), err error)
}

// Main runs the program until it receives a signal to stop, and exits. A second signal ends it at
// once.
func (p Program) Main() { Main(p) }

// Runner is a program: it runs until ctx ends, and returns its exit code.
type Runner interface {
	Run(ctx context.Context, args []string, stdout, stderr io.Writer) int
}

// Main runs a program as [Program.Main] does.
func Main(r Runner) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(r.Run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Run runs the program until ctx ends, and returns its exit code.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	addr := AddrFlag(p.Flags)
	redisURL := RedisFlag(p.Flags)
	return Parse(p.Flags, args, stderr, func() error { return p.serve(ctx, *addr, *redisURL, stdout) })
}

// AddrFlag adds the flag -addr, whose value is for [Serve].
func AddrFlag(flags *flag.FlagSet) *string {
	return flags.String("addr", "127.0.0.1:8080", "`address` to listen on; port 0 takes a free one")
}

// Parse parses flags, runs the rest of the program, and returns its exit code.
func Parse(flags *flag.FlagSet, args []string, stderr io.Writer, run func() error) int {
	flags.SetOutput(stderr)
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil: // it has been printed
		return 2
	case flags.NArg() > 0:
		_, _ = fmt.Fprintf(stderr, "%s: unexpected argument %q\n", flags.Name(), flags.Arg(0))
		return 2
	}
	if err := run(); err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", flags.Name(), err)
		return 1
	}
	return 0
}

func (p Program) serve(ctx context.Context, addr, redisURL string, stdout io.Writer) (err error) {
	st, kind, closeStore, err := OpenStore(ctx, redisURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	handler, end, err := p.Handler(st)
	if err != nil {
		return err
	}
	defer end()
	// First no more requests, then what they have left to do, then (by the defers above) the rest.
	err = Serve(ctx, addr, handler, stdout, " (store: "+kind+")")
	ending, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	return errors.Join(err, st.Shutdown(ending))
}

// Serve serves requests until ctx ends, and then those in flight. It prints where, and a remark.
func Serve(ctx context.Context, addr string, handler http.Handler, stdout io.Writer, remark string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("-addr: %w; port 0 takes a free one", err)
	}
	server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	_, _ = fmt.Fprintf(stdout, "listening on http://%s%s\n", listener.Addr(), remark)

	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	err = server.Shutdown(ending)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	if served := <-failed; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

//go:embed page
var common embed.FS

// Page serves a page, which loads nothing from other hosts and is not allowed to: page.html of its
// files at /, and the other ones, and the ones that all pages have, under their names.
func Page(mux *http.ServeMux, files fs.FS) error {
	for _, files := range []fs.FS{common, files} {
		entries, err := fs.ReadDir(files, "page")
		if err != nil {
			return err
		}
		for _, entry := range entries {
			path := entry.Name()
			if path == "page.html" {
				path = "{$}"
			}
			mux.HandleFunc("GET /"+path, func(w http.ResponseWriter, r *http.Request) {
				Headers(w.Header())
				http.ServeFileFS(w, r, files, "page/"+entry.Name())
			})
		}
	}
	return nil
}

// Headers sets what a page is allowed to do, which is little, and that it is asked for anew.
func Headers(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
		"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
}

// Self returns the URL of the server that handles the request. It is what the server listens on,
// and not what the client calls it.
func Self(r *http.Request) string {
	return "http://" + r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()
}
