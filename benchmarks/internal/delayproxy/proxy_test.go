package delayproxy_test

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/delayproxy"
)

// echo sends back the data of every connection.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	return l.Addr().String()
}

func TestConcurrentDataIsDelayedOnce(t *testing.T) {
	const delay = 50 * time.Millisecond
	p, err := delayproxy.Start(echo(t), delay)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()

	const lines = 100
	start := time.Now()
	go func() {
		for range lines {
			_, _ = c.Write([]byte("line\n"))
		}
	}()
	in := bufio.NewScanner(c)
	for i := range lines {
		if !in.Scan() || in.Text() != "line" {
			t.Fatalf("line %d: %q, %v", i, in.Text(), in.Err())
		}
		if took := time.Since(start); i == 0 && took < delay {
			t.Fatalf("the first line was back after %v, less than %v", took, delay)
		}
	}
	if took := time.Since(start); took > lines*delay/4 {
		t.Fatalf("%d lines took %v: one waited for the other", lines, took)
	}
}

func TestCloseCutsConnections(t *testing.T) {
	p, err := delayproxy.Start(echo(t), time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	p.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Fatal("the connection is still there")
	}
	if _, err := net.Dial("tcp", p.Addr()); err == nil {
		t.Fatal("the proxy still listens")
	}
}
