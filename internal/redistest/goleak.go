package redistest

import "go.uber.org/goleak"

// Redialing ignores goroutines of clients after a test that stops servers: a client that could not
// connect retries every second, and finds only then that it was closed.
func Redialing() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
}
