package grpcmw_test

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
)

// idle is the framework with interceptors that do nothing.
type idle struct{ framework }

func pass(ctx context.Context, call func(context.Context) error) error { return call(ctx) }

func (f idle) RateLimit(*tokenbucket.Limiter, rpctest.Key, ...policy.RPCRateLimitOption) rpctest.Interceptor {
	return f.Around(pass)
}

func (f idle) Idempotency(*guard.Guard, rpctest.Scope, ...policy.RPCIdempotencyOption) rpctest.Interceptor {
	return f.Around(pass)
}

func (f idle) Exclusive(*lock.Locker, rpctest.Key, ...policy.ExclusiveOption) rpctest.Interceptor {
	return f.Around(pass)
}

func (f idle) Concurrency(*semaphore.Semaphore, rpctest.Key, ...policy.ConcurrencyOption) rpctest.Interceptor {
	return f.Around(pass)
}

func (f idle) Fenced(fence.Checker, rpctest.Key, ...policy.FencedOption) rpctest.Interceptor {
	return f.Around(pass)
}

func (f idle) RateLimitClient(*tokenbucket.Limiter, rpctest.Key, ...policy.RPCClientOption) rpctest.ClientInterceptor {
	return f.AroundClient(pass)
}

func (f idle) IdempotencyClient() rpctest.ClientInterceptor { return f.AroundClient(pass) }

func (f idle) FencedClient() rpctest.ClientInterceptor { return f.AroundClient(pass) }

// harmless are the rows that only require that an interceptor does no harm.
var harmless = []string{"a panic releases the lock", "methods without side effects pass"}

const idleEnv = "GRPCMW_IDLE"

func TestIdle(t *testing.T) {
	if os.Getenv(idleEnv) == "" {
		t.Skip("runs as processes of TestTheTableFindsWhatIsMissing")
	}
	rpctest.Run(t, idle{})
}

// The table must fail for interceptors that do nothing. Each row runs in a process: it may wait for
// what never happens, or panic.
func TestTheTableFindsWhatIsMissing(t *testing.T) {
	if testing.Short() {
		t.Skip("rows that fail wait for long")
	}
	t.Parallel()
	var processes sync.WaitGroup
	slots := make(chan struct{}, 24)
	for _, row := range rpctest.Rows() {
		processes.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			name := strings.ReplaceAll(row, " ", "_")
			cmd := exec.CommandContext(t.Context(), os.Args[0], //nolint:gosec // the test's own binary
				"-test.run=^TestIdle$/^"+regexp.QuoteMeta(name)+"$", "-test.v", "-test.timeout=20s")
			cmd.Env = append(os.Environ(), idleEnv+"=1")
			out, err := cmd.CombinedOutput()
			if !strings.Contains(string(out), "=== RUN   TestIdle/"+name) {
				t.Errorf("%s: has not run: %v\n%s", row, err, out)
			}
			if passed := err == nil; passed != slices.Contains(harmless, row) {
				t.Errorf("%s: passed is %v", row, passed)
			}
		})
	}
	processes.Wait()
}
