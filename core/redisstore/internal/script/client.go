// Package script runs Lua scripts on a Redis server or a Cluster: alone, in pipelines, or in
// batches. Each call has a timeout, passes the circuit breaker of its server, and is repeated if a
// repeat is safe. The package does not depend on the content of the scripts.
package script

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Client runs scripts. All methods may be called concurrently.
type Client struct {
	config Config
	made   time.Time
	nodes  nodes

	plainScripts atomic.Bool // a server is older than 7
	deadlines    deadlines
	spareSteps   sync.Pool // of *stepRequest that have ended

	telemetry             *telemetry.Store
	damage, misconfigured *telemetry.Repeated

	closing    sync.Mutex // guards changes of closed and background together
	closed     atomic.Bool
	life       context.Context // ends when the client is closed
	end        context.CancelFunc
	background sync.WaitGroup
}

// Config is the configuration of a Client. All fields are required, except for Acks and AckTimeout.
type Config struct {
	Redis    redis.UniversalClient // a *redis.Client or a *redis.ClusterClient with ContextTimeoutEnabled
	PoolSize int                   // of Redis
	Scripts  []*Script             // loaded on each server before the first one is used
	Timeout  time.Duration         // for a connection, and again for the reply
	ProbeKey string                // the key that probes write

	// Acks is the number of replicas that have to confirm a Step that Grants, within AckTimeout. 0
	// means none.
	Acks       int
	AckTimeout time.Duration

	// CheckServer returns the reason not to use a server for a Step that Begins something, or nil.
	// It is called once for each server.
	CheckServer func(context.Context, *redis.Client) error
	// Attach returns the value of Node.Attached for a node. It is called once for each server, and
	// for a Cluster as a whole.
	Attach func(*Node) any

	Logger     *slog.Logger
	Providers  telemetry.Providers
	ScopeName  string
	Operations []Operation   // all that calls have
	Counter    *live.Counter // of calls; may be nil
}

// New returns a client. It sends nothing.
func New(config Config) *Client {
	c := &Client{config: config, made: time.Now()}
	c.life, c.end = context.WithCancel(context.Background())
	c.nodes.init(c)
	operations := []string{route.Name}
	for _, op := range config.Operations {
		operations = append(operations, op.Name)
	}
	c.telemetry = telemetry.NewStore(config.Providers, config.ScopeName, "redis", operations, c.IsDown, config.Counter)
	faults := config.Logger.With("store", "redis")
	c.damage = telemetry.NewRepeated(faults, telemetry.DamagedRecord)
	c.misconfigured = telemetry.NewRepeated(faults.With("address", addressOf(config.Redis)), "lockkeeper: redis is misconfigured")
	return c
}

// IsDown reports whether a server is taken to be down.
func (c *Client) IsDown() bool { return slices.ContainsFunc(c.Nodes(), (*Node).isDown) }

// Start runs f in the background; Close waits for it. If the client is closed, it returns false
// instead.
func (c *Client) Start(f func()) bool {
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.closed.Load() {
		return false
	}
	c.background.Go(f)
	return true
}

// Life returns a context that ends when the client is closed.
func (c *Client) Life() context.Context { return c.life }

// CountReconnect counts a subscription that broke.
func (c *Client) CountReconnect(ctx context.Context) { c.telemetry.Reconnect(ctx) }

// Close makes later calls fail with store.ErrClosed, and waits for background work.
func (c *Client) Close() {
	c.closing.Lock()
	c.closed.Store(true)
	c.closing.Unlock()
	c.end()
	c.nodes.stop()
	c.background.Wait()
	c.deadlines.stop()
	c.telemetry.Close()
}

// clock returns the time since the client was created.
func (c *Client) clock() int64 { return int64(time.Since(c.made)) }

// unhurried is the timeout of background work, which no caller waits for.
func (c *Client) unhurried() time.Duration { return max(time.Second, 4*c.config.Timeout) }

// timeFor returns the additional timeout of a call with this many bytes: the timeout for each MiB.
func (c *Client) timeFor(bytes int) time.Duration {
	if bytes < stepBytes {
		return 0
	}
	return time.Duration(float64(c.config.Timeout) * float64(bytes) / (1 << 20))
}
