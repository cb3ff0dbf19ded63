package redistest

import "go.uber.org/goleak"

// Redialing is what goleak has to overlook where a test stops servers: a client that could not
// connect looks every second whether it can, and notices only then that it was closed.
func Redialing() goleak.Option {
	return goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
}
