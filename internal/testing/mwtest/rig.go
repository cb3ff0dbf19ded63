package mwtest

import (
	"crypto/rand"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// rig is the test of a row, with the framework and the kind of store that it is about.
type rig struct {
	*testing.T
	framework Framework
	kind      kind
	patience  time.Duration // how long the row waits for an event
	began     time.Time
}

// kind is a kind of store.
type kind struct {
	// open returns what opens stores that share a new state, and closes them when the test ends.
	open     func(*testing.T) (connect func() store.Store)
	onServer bool // and not in this process
}

var inMemory = kind{open: func(t *testing.T) func() store.Store {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return func() store.Store { return st }
}}

// onRedis is the stores on a server.
func onRedis(client func() redis.UniversalClient) kind {
	return kind{onServer: true, open: func(t *testing.T) func() store.Store {
		prefix := rand.Text()
		return func() store.Store {
			c := client()
			st := must(redisstore.New(c, redisstore.WithPrefix(prefix), redisstore.WithTimeout(10*time.Second))) // a busy machine is no outage
			t.Cleanup(func() {
				_ = st.Close()
				_ = c.Close()
			})
			return st
		}
	}}
}

// newRig returns the rig of a test that runs rows.
func newRig(t *testing.T, f Framework, k kind) *rig {
	return &rig{T: t, framework: f, kind: k, patience: 10 * time.Second}
}

// with returns the same rig for another test.
func (t *rig) with(other *testing.T) *rig {
	r := *t
	r.T = other
	return &r
}

// Run runs a part of the test.
func (t *rig) Run(name string, test func(*rig)) bool {
	return t.T.Run(name, func(part *testing.T) { test(t.with(part)) })
}

// newStore returns a new store that fails on command.
func newStore(t *rig) *storetest.Faulty { return storetest.NewFaulty(t.kind.open(t.T)()) }

// timed runs a test with faked time.
func timed(t *rig, test func(*rig)) {
	if t.kind.onServer {
		t.Skip("a server does not have the time of the test")
	}
	defer func() {
		// A test that fails leaves goroutines blocked. That is no reason to end the process, and with
		// it all other rows.
		if deadlock := recover(); deadlock != nil {
			t.Error(deadlock)
		}
	}()
	synctest.Test(t.T, func(bubble *testing.T) {
		r := t.with(bubble)
		r.began = time.Now()
		test(r)
	})
}
