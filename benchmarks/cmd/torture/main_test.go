package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/coordserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

func TestMain(m *testing.M) {
	workload.Main()
	os.Exit(m.Run())
}

func installed(t *testing.T, store string) {
	t.Helper()
	missing, variable := pgserver.Version(t.Context()) == "", "LOCKKEEPER_REQUIRE_POSTGRES"
	switch store {
	case "redis":
		_, err := exec.LookPath("redis-server")
		missing, variable = err != nil, "LOCKKEEPER_REQUIRE_REDIS"
	case "etcd":
		missing, variable = !coordserver.HasEtcd(), "LOCKKEEPER_REQUIRE_ETCD"
	case "zookeeper":
		missing, variable = !coordserver.HasZooKeeper(), "LOCKKEEPER_REQUIRE_ZOOKEEPER"
	}
	if missing {
		if os.Getenv(variable) == "1" {
			t.Fatalf("no server, and %s=1", variable)
		}
		t.Skip("no server")
	}
}

// log has the output of a command in that of a test.
type log struct{ t *testing.T }

func (l log) Write(text []byte) (int, error) {
	l.t.Log(strings.TrimRight(string(text), "\n"))
	return len(text), nil
}

func TestTiny(t *testing.T) {
	if testing.Short() {
		t.Skip("keeps all cores busy for half a minute")
	}
	t.Parallel()
	for _, store := range []string{"redis", "postgres", "etcd", "zookeeper"} {
		t.Run(store, func(t *testing.T) {
			installed(t, store)
			t.Parallel()
			dir := t.TempDir()
			if err := run(context.Background(), []string{"-tiny", "-store", store, "-out", dir}, log{t}); err != nil {
				t.Error(err)
			}
			text, err := os.ReadFile(filepath.Join(dir, "TORTURE.md"))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"go run ./cmd/torture -store '" + store + "' -tiny -seed ", "`WithFair`", "longest gap", "| **0** |"} {
				if !strings.Contains(string(text), want) {
					t.Errorf("the report has no %s:\n%s", want, text)
				}
			}
		})
	}
}

// Faults that last for longer than most, so that a tiny run seldom comes to all of them.
func TestTinyOfLongFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("keeps all cores busy for half a minute")
	}
	t.Parallel()
	for store, names := range map[string]string{
		"redis":    "address moves|silent pools|hot scope",
		"postgres": "address moves|silent pools|hot scope|slow commits|silent replica",
	} {
		t.Run(store, func(t *testing.T) {
			installed(t, store)
			t.Parallel()
			dir := t.TempDir()
			if err := run(context.Background(), []string{"-tiny", "-once", "-store", store, "-faults", "^(" + names + ")$", "-out", dir}, log{t}); err != nil {
				t.Error(err)
			}
			text, err := os.ReadFile(filepath.Join(dir, "TORTURE.md"))
			if err != nil {
				t.Fatal(err)
			}
			for name := range strings.SplitSeq(names, "|") {
				if !strings.Contains(string(text), "| "+name+" |") {
					t.Errorf("the report has no %s", name)
				}
			}
			if strings.Contains(string(text), "could not be injected") {
				t.Errorf("a fault was not injected: %s", text)
			}
		})
	}
}

// What is broken in the store is found, whatever else happens: a busy machine takes longer to meet
// it.
func TestBugsAreFound(t *testing.T) {
	if testing.Short() {
		t.Skip("keeps all cores busy for half a minute")
	}
	for _, store := range []string{"redis", "postgres", "etcd", "zookeeper"} {
		for _, bug := range []string{"split", "generous", "hasty", "forget"} {
			if bug == "hasty" && (store == "etcd" || store == "zookeeper") { // which have no tasks
				continue
			}
			t.Run(store+"/"+bug, func(t *testing.T) {
				installed(t, store)
				t.Parallel()
				for duration := 2 * time.Second; ; duration *= 2 {
					var text strings.Builder
					err := run(context.Background(), []string{
						"-store", store, "-faults", "nothing|repeated pushes", "-duration", duration.String(), "-workers", "2", "-bug", bug, "-out", t.TempDir(),
					}, &text)
					if err != nil && strings.HasSuffix(err.Error(), " violations") && strings.Contains(text.String(), "VIOLATION") {
						return
					}
					if err != nil || duration > 10*time.Second {
						t.Fatalf("%v: %s", err, text.String())
					}
				}
			})
		}
	}
}

// An interrupted run ends, with an error and without a report.
func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	err := run(ctx, []string{"-store", "memory", "-faults", "nothing", "-out", dir}, writer(func() { cancel() }))
	if err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Error(err)
	}
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("it has left %s", files[0].Name())
	}
}

// writer is called for every line of a command's output.
type writer func()

func (w writer) Write(text []byte) (int, error) {
	w()
	return len(text), nil
}

func TestWrongFlags(t *testing.T) {
	for _, args := range []string{
		"-store mysql", "-workers 0", "-duration 0s", "-faults (", "-faults none-such -store memory", "-subjects none-such -store memory", "-subjects (",
		"-tasks 1 -store memory", "-bug none", "-no-such-flag", "-tiny extra",
	} {
		if err := run(context.Background(), strings.Fields(args), log{t}); err == nil {
			t.Errorf("%q was accepted", args)
		}
	}
}
