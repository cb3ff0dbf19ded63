package grpc_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/examples/grpc/shop"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// programs has server and client, built once.
var programs string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "grpc")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	programs = dir
	if out, err := exec.Command("go", "build", "-o", dir, "./server", "./client").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// instance is a running server, and a connection to it.
type instance struct {
	addr   string
	health grpc_health_v1.HealthClient
	cmd    *exec.Cmd
	stderr bytes.Buffer // to be read when the program has ended
	shop   shop.ShopClient
}

func start(t *testing.T, args ...string) *instance {
	t.Helper()
	i := &instance{cmd: exec.Command(filepath.Join(programs, "server"), append([]string{"-addr", "127.0.0.1:0"}, args...)...)}
	i.cmd.Stderr = &i.stderr
	out, err := i.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = i.cmd.Process.Kill()
		_ = i.cmd.Wait()
		if strings.Contains(i.stderr.String(), "panic") {
			t.Errorf("the program panicked:\n%s", i.stderr.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the program did not come up: %v", err)
	}
	if _, err := fmt.Sscanf(line, "listening on %s", &i.addr); err != nil {
		t.Fatalf("it printed %q: %v", line, err)
	}
	conn, err := grpc.NewClient(i.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	i.shop, i.health = shop.NewShopClient(conn), grpc_health_v1.NewHealthClient(conn)
	return i
}

// run runs the client and returns what it prints.
func (i *instance) run(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), filepath.Join(programs, "client"), append([]string{"-addr", i.addr}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

func as(t *testing.T, user string, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), append(pairs, "x-user", user)...)
}

// A checkout on one instance is replayed by another.
func TestCheckoutRunsOnce(t *testing.T) {
	server := redistest.Start(t)
	one, two := start(t, "-redis", server.URL()), start(t, "-redis", server.URL())
	first := one.run(t, "-key", "k")
	number, found := strings.CutSuffix(first, ", replayed: false\n")
	if !found {
		t.Fatalf("the client printed %q", first)
	}
	for _, i := range []*instance{one, two} {
		if again := i.run(t, "-key", "k"); again != number+", replayed: true\n" {
			t.Errorf("the client printed %q, and then %q", first, again)
		}
	}
	for _, args := range [][]string{{"-key", "other"}, {"-key", "k", "-user", "bob"}, {}, {}} {
		if other := one.run(t, args...); strings.HasPrefix(other, number) || !strings.HasSuffix(other, "replayed: false\n") {
			t.Errorf("with %v it printed %q", args, other)
		}
	}
}

func TestRefusals(t *testing.T) {
	i := start(t)
	checkout := func(ctx context.Context, cart string) error {
		_, err := i.shop.Checkout(ctx, &shop.CheckoutRequest{CartId: cart})
		return err
	}
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"a stranger":      {checkout(t.Context(), "1"), codes.Unauthenticated},
		"without a key":   {checkout(as(t, "alice"), "1"), codes.InvalidArgument},
		"without a cart":  {checkout(as(t, "alice", "idempotency-key", "a"), ""), codes.InvalidArgument},
		"with everything": {checkout(as(t, "alice", "idempotency-key", "b"), "1"), codes.OK},
		"another request": {checkout(as(t, "alice", "idempotency-key", "b"), "2"), codes.InvalidArgument},
	} {
		if status.Code(c.err) != c.want {
			t.Errorf("%s: %v, want %v", name, c.err, c.want)
		}
	}
	if _, err := i.shop.GetOrder(as(t, "alice"), &shop.GetOrderRequest{}); status.Code(err) != codes.NotFound {
		t.Errorf("a method without side effects: %v", err)
	}
	over := 0
	for range 20 {
		if _, err := i.shop.GetOrder(as(t, "alice"), &shop.GetOrderRequest{}); status.Code(err) == codes.ResourceExhausted {
			over++
		}
	}
	if over == 0 || over == 20 {
		t.Errorf("%d of 20 calls over the limit", over)
	}
}

// A user has two concurrent streams, and a third after the end of one.
func TestWatchersAreLimited(t *testing.T) {
	i := start(t)
	watch := func(ctx context.Context) error {
		stream, err := i.shop.WatchStock(ctx, &shop.WatchStockRequest{})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	leaving, leave := context.WithCancel(as(t, "alice"))
	for _, ctx := range []context.Context{leaving, as(t, "alice"), as(t, "bob")} {
		if err := watch(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := watch(as(t, "alice")); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the third: %v", err)
	}
	leave()
	var err error
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		ctx, cancel := context.WithTimeout(as(t, "alice"), 10*time.Second)
		defer cancel()
		if err = watch(ctx); err == nil {
			return
		}
	}
	t.Errorf("when there is room again: %v", err)
}

func TestSignal(t *testing.T) {
	i := start(t)
	i.run(t)
	if err := i.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := i.cmd.Wait(); err != nil || i.stderr.Len() > 0 {
		t.Errorf("it ended with %v: %s", err, i.stderr.String())
	}
}

// A probe has no user and no key, and is not refused because others have used the limit up.
func TestProbes(t *testing.T) {
	server := start(t)
	for n := range 60 {
		if reply, err := server.health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); err != nil || reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Fatalf("probe %d: %v, %v", n, reply, err)
		}
	}
	watch, err := server.health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if reply, err := watch.Recv(); err != nil || reply.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("a watch: %v, %v", reply, err)
	}
}
