package redistest

// Redialing is a function for leaktest to ignore after a test that stops servers: a client that
// could not connect retries every second, and finds only then that it was closed.
const Redialing = "github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial"
