package worker_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

type square struct{ Number, PID int }

func TestMain(m *testing.M) {
	worker.Main(
		worker.Job{Name: "square", Run: func(_ context.Context, args []byte, begin func() error) (any, error) {
			var n int
			if err := json.Unmarshal(args, &n); err != nil {
				return nil, err
			}
			if err := begin(); err != nil {
				return nil, err
			}
			return square{n * n, os.Getpid()}, nil
		}},
		worker.Job{Name: "second fails", Run: func(ctx context.Context, args []byte, begin func() error) (any, error) {
			if string(args) == "1\n" {
				return nil, errors.New("no more squares")
			}
			if err := begin(); err != nil {
				return nil, err
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}},
	)
	os.Exit(m.Run())
}

func TestGroupRunsInSeparateProcesses(t *testing.T) {
	var began int
	got, err := worker.Group[square](t.Context(), 3, "square", func(i int) any { return i + 1 }, func() { began++ })
	if err != nil {
		t.Fatal(err)
	}
	if began != 1 {
		t.Errorf("the group began %d times", began)
	}
	pids := []int{os.Getpid()}
	for i, s := range got {
		if want := (i + 1) * (i + 1); s.Number != want {
			t.Errorf("worker %d answered %d, want %d", i, s.Number, want)
		}
		if slices.Contains(pids, s.PID) {
			t.Errorf("worker %d ran in a process of another, %d", i, s.PID)
		}
		pids = append(pids, s.PID)
	}
}

func TestErrorEndsTheGroup(t *testing.T) {
	_, err := worker.Group[square](t.Context(), 2, "second fails", func(i int) any { return i }, func() {})
	if err == nil || !strings.Contains(err.Error(), "second fails") {
		t.Fatalf("got %v, want the failure of the second worker", err)
	}
}

func TestVictim(t *testing.T) {
	for name, signal := range map[string]os.Signal{"killed": os.Kill, "stopped": syscall.SIGSTOP} {
		failure := errors.New(name)
		err := worker.Victim(t.Context(), "second fails", 0, func(p *os.Process) error {
			if err := p.Signal(signal); err != nil {
				return err
			}
			return failure
		})
		if !errors.Is(err, failure) {
			t.Errorf("%s: got %v, want the error of the function", name, err)
		}
	}
	err := worker.Victim(t.Context(), "second fails", 1, func(*os.Process) error { return nil })
	if err == nil {
		t.Error("no error of a process that was not prepared")
	}
}

func TestUnknownJob(t *testing.T) {
	if _, err := worker.Group[square](t.Context(), 1, "none", func(int) any { return 0 }, func() {}); err == nil {
		t.Fatal("no error")
	}
}
