package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A notebook keeps texts that are written once and never changed: the shop's orders and the
// provider's ledger. It stands for two databases of a real shop.
type notebook interface {
	// write stores text under a name unless the name has one, and returns the text that is stored
	// then. first reports whether it is the given one.
	write(ctx context.Context, name, text string) (noted string, first bool, err error)
	read(ctx context.Context, name string) (text string, found bool, err error)
}

// memoryNotebook lives in process memory. It is never emptied, which only a demonstration can
// afford.
type memoryNotebook struct {
	mu    sync.Mutex
	notes map[string]string
}

func newMemoryNotebook() *memoryNotebook { return &memoryNotebook{notes: map[string]string{}} }

func (n *memoryNotebook) write(_ context.Context, name, text string) (string, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if noted, ok := n.notes[name]; ok {
		return noted, false, nil
	}
	n.notes[name] = text
	return text, true, nil
}

func (n *memoryNotebook) read(_ context.Context, name string) (string, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	text, ok := n.notes[name]
	return text, ok, nil
}

// redisNotebook is shared by all instances.
type redisNotebook struct{ client *redis.Client }

const (
	redisTimeout = 300 * time.Millisecond
	redisPrefix  = "checkout:"
	// keptFor is longer than the 24 hours that the guard keeps its records, so that a second
	// attempt at a purchase finds the charge of the first.
	keptFor = 25 * time.Hour
)

func (n redisNotebook) write(ctx context.Context, name, text string) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	first, err := n.client.SetNX(ctx, redisPrefix+name, text, keptFor).Result()
	if first || err != nil {
		return text, first, err
	}
	noted, err := n.client.Get(ctx, redisPrefix+name).Result()
	// The client retries a command whose reply was lost, and may then find its own text. A text
	// with an ID of its own cannot have been written by another call.
	return noted, noted == text, err
}

func (n redisNotebook) read(ctx context.Context, name string) (string, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	text, err := n.client.Get(ctx, redisPrefix+name).Result()
	if errors.Is(err, redis.Nil) {
		return "", false, nil
	}
	return text, err == nil, err
}
