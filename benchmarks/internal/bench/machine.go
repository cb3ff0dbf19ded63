package bench

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
)

// fact is one line about the environment.
type fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

const unknown = "unknown"

// machine returns the facts that the figures depend on.
func machine(ctx context.Context) []fact {
	return []fact{
		{"processor", processor()},
		{"cores", strconv.Itoa(runtime.NumCPU()) + ", shared by clients and servers"},
		{"system", system(ctx)},
		{"system call", systemCall().String()},
		{"Go", strings.TrimPrefix(runtime.Version(), "go")},
		{"Redis", redisVersion(ctx)},
		{"PostgreSQL", cmp.Or(pgserver.Version(ctx), unknown)},
	}
}

func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return unknown
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return unknown
}

func system(ctx context.Context) string {
	kernel := unknown
	if text, err := exec.CommandContext(ctx, "uname", "-sr").Output(); err == nil {
		kernel = strings.TrimSpace(string(text))
	}
	return kernel + ", " + runtime.GOARCH
}

// systemCall returns the time of a system call, which differs most between virtual machines: the least of
// some means.
func systemCall() time.Duration {
	const calls = 10_000
	least := time.Hour
	for range 20 {
		began := time.Now()
		for range calls {
			os.Getppid()
		}
		least = min(least, time.Since(began)/calls)
	}
	return least
}

var versionOf = regexp.MustCompile(`v=([0-9.]+)`)

func redisVersion(ctx context.Context) string {
	text, err := exec.CommandContext(ctx, "redis-server", "--version").Output()
	if err != nil {
		return unknown
	}
	if m := versionOf.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return unknown
}

// modules returns the versions of the measured modules of this program.
func modules() []fact {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	var facts []fact
	for _, module := range info.Deps {
		if slices.ContainsFunc(measured(), func(path string) bool { return module.Path == path }) {
			facts = append(facts, fact{module.Path, module.Version})
		}
	}
	return facts
}

// measured returns the paths of the modules whose versions matter.
func measured() []string {
	return []string{
		"github.com/redis/go-redis/v9", "github.com/redis/rueidis", "github.com/redis/rueidis/rueidislock",
		"github.com/go-redis/redis_rate/v10", "github.com/ulule/limiter/v3", "github.com/throttled/throttled/v2",
		"github.com/throttled/throttled/v2/store/goredisstore.v9",
		"github.com/sethvargo/go-limiter", "golang.org/x/time", "github.com/go-chi/httprate",
		"github.com/go-redsync/redsync/v4", "github.com/bsm/redislock",
		"github.com/gin-gonic/gin", "github.com/labstack/echo/v4", "github.com/labstack/echo/v5",
		"github.com/jackc/pgx/v5", "github.com/gofiber/fiber/v3", "google.golang.org/grpc",
		"github.com/hibiken/asynq", "github.com/riverqueue/river",
		"go.etcd.io/etcd/client/v3", "github.com/go-zookeeper/zk",
	}
}
