package middleware

import (
	"time"

	"github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The limit of every middleware: a number in a period, all of which may come at once.
const (
	limit  = 1_000_000_000
	period = 1000 * time.Second
)

// ordinaryRate is a limit of 300 a second with a burst that no measurement uses up.
func ordinaryRate() tokenbucket.Limit { return tokenbucket.PerSecond(300).Burst(limit) }

// The header fields of requests. fiber's middleware has another name for the key.
const (
	clientField   = "X-Api-Key"
	client        = "client-1"
	keyField      = "Idempotency-Key"
	fiberKeyField = "X-Idempotency-Key"
)

// requestBody and answer are the bodies of requests and responses.
const (
	requestBody = `{"amount":100,"currency":"EUR"}`
	answer      = "ok"
)

func newLimiter(r requests) (*tokenbucket.Limiter, func(), error) {
	store, plan := memstore.New(), tokenbucket.Per(limit, period)
	if r == ordinary {
		plan = ordinaryRate()
	}
	limiter, err := tokenbucket.New(store, "bench", plan)
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

// keyOf is the key of request i: 36 characters, as fiber's middleware requires.
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
