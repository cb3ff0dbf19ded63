package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// A notebook keeps what is written down once and never changed: the shop's orders and the
// provider's ledger. It stands for two databases that a real shop has.
type notebook interface {
	// write notes text under a name that has none, and returns what is noted under it then:
	// the text, and first is true, or what was there before.
	write(ctx context.Context, name, text string) (noted string, first bool, err error)
	read(ctx context.Context, name string) (text string, found bool, err error)
}

// memoryNotebook is gone with the process. It is never emptied, which a shop that runs for longer
// than a demonstration could not afford.
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
	// keptFor is longer than the 24 hours that the guard keeps its records for, so that whoever
	// runs a purchase again finds the charge of the first attempt.
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
	// The client sends a command again if its reply was lost, and then meets its own text, which
	// no other call can have written if it has an id of its own in it.
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
