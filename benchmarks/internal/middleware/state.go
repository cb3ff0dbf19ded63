package middleware

import (
	"time"

	"github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The limit that every middleware has: so many in a period, all of which may come at once.
const (
	limit  = 1_000_000_000
	period = 1000 * time.Second
)

// The header fields of requests. fiber's middleware has a name of its own for the key.
const (
	clientField   = "X-Api-Key"
	client        = "client-1"
	keyField      = "Idempotency-Key"
	fiberKeyField = "X-Idempotency-Key"
)

// requestBody and answer are what the client and the handler send.
const (
	requestBody = `{"amount":100,"currency":"EUR"}`
	answer      = "ok"
)

func newLimiter() (*tokenbucket.Limiter, func(), error) {
	store := memstore.New()
	limiter, err := tokenbucket.New(store, "bench", tokenbucket.Per(limit, period))
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	return limiter, func() { store.Close() }, nil
}

func newGuard() (*guard.Guard, func(), error) {
	const room = 1 << 30 // for all records of a measurement
	store := memstore.New(memstore.WithMaxRecordBytes(room))
	g, err := guard.New(store, "bench", guard.WithMaxPerScope(1<<20), guard.WithMaxScopeBytes(room))
	if err != nil {
		store.Close()
		return nil, nil, err
	}
	return g, func() { store.Close() }, nil
}

func newUlule() *limiter.Limiter {
	return limiter.New(ululememory.NewStore(), limiter.Rate{Period: period, Limit: limit})
}

// keyOf is the key of request i: 36 characters, as fiber's middleware demands.
func keyOf(r requests, i int) string {
	if r == same {
		i = 0
	}
	key := []byte("00000000-0000-4000-8000-000000000000")
	for at := len(key) - 1; i > 0; at-- {
		key[at] = "0123456789abcdef"[i&15]
		i >>= 4
	}
	return string(key)
}
