package testproc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"time"
)

// Server is a program that runs until it is ended, or the test binary has ended, however.
type Server struct {
	stdin  io.Closer
	exited chan struct{} // when the program and its watcher have
}

// Start starts a command of [Watched], whose output goes to a file, and waits until the server is ready,
// or for the time within.
func Start(cmd *exec.Cmd, output string, within time.Duration, ready func() bool) (*Server, error) {
	log, err := os.Create(output) //nolint:gosec // of a test
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &Server{stdin, make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(s.exited)
	}()
	if err := s.await(within, ready); err != nil {
		s.End(0)
		text, _ := os.ReadFile(output) //nolint:gosec // as above
		return nil, fmt.Errorf("%w: %s", err, text)
	}
	return s, nil
}

func (s *Server) await(within time.Duration, ready func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(within)
	for !ready() {
		select {
		case <-s.exited:
			return errors.New("exited at once")
		case <-deadline:
			return fmt.Errorf("not ready after %v", within)
		case <-tick.C:
		}
	}
	return nil
}

// End has the watcher send its signal, and waits until the server has ended: for a time, unless that
// is 0. It reports whether it has.
func (s *Server) End(within time.Duration) bool {
	_ = s.stdin.Close()
	if within == 0 {
		<-s.exited
		return true
	}
	select {
	case <-s.exited:
		return true
	case <-time.After(within):
		return false
	}
}

// FreePort returns a free port of the loopback interface. Another process may take it first.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Accepts reports whether a server accepts connections at an address.
func Accepts(address string) bool {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// Somewhere calls start with free ports until it succeeds, up to ten times, and returns the port.
func Somewhere(start func(port int) error) (port int, err error) {
	for range 10 {
		if port, err = FreePort(); err != nil {
			return 0, err
		}
		if err = start(port); err == nil {
			return port, nil
		}
	}
	return 0, err
}
