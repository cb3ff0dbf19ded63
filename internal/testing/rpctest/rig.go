package rpctest

import (
	"crypto/rand"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// rig is the test of a row, with the framework and the stores that it is about.
type rig struct {
	*testing.T
	Framework
	open func(testing.TB) store.Store
}

// with returns the same rig for another test.
func (t *rig) with(other *testing.T) *rig { return &rig{other, t.Framework, t.open} }

// Run runs a part of the test.
func (t *rig) Run(name string, test func(*rig)) bool {
	return t.T.Run(name, func(part *testing.T) { test(t.with(part)) })
}

// timed runs a test with faked time.
func timed(t *rig, test func(*rig)) {
	synctest.Test(t.T, func(bubble *testing.T) { test(t.with(bubble)) })
}

// newStore returns a new store that fails on command.
func newStore(t *rig) *storetest.Faulty { return storetest.NewFaulty(t.open(t)) }

// NewStore returns a new store in memory that fails on command.
func NewStore(t testing.TB) *storetest.Faulty { return storetest.NewFaulty(inMemory(t)) }

func inMemory(t testing.TB) store.Store {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// Run runs the table, with stores in memory. Its rows run beside each other, and beside the
// caller's other parallel tests.
func Run(t *testing.T, f Framework) { (&rig{t, f, inMemory}).run(rows, more) }

// RunOutcomes runs the rows about what a client sees, with stores in memory.
func RunOutcomes(t *testing.T, f Framework) { (&rig{t, f, inMemory}).run(rows) }

// RunOnServers is RunOutcomes on each kind of Redis server.
func RunOnServers(t *testing.T, f Framework) {
	for name, start := range redistest.Servers {
		t.Run(name, func(t *testing.T) {
			client := start(t)
			(&rig{t, f, func(t testing.TB) store.Store {
				c := client()
				st := must(redisstore.New(c, redisstore.WithPrefix(rand.Text()), redisstore.WithTimeout(10*time.Second))) // a busy machine is no outage
				t.Cleanup(func() {
					_ = st.Close()
					_ = c.Close()
				})
				return st
			}}).run(rows)
		})
	}
}

// Rows returns the names of the rows of [Run].
func Rows() (names []string) {
	for _, r := range slices.Concat(rows, more) {
		names = append(names, r.name)
	}
	return names
}

// row is one row of the table.
type row struct {
	name string
	test func(*rig)
}

func (t *rig) run(tables ...[]row) {
	for _, table := range tables {
		for _, r := range table {
			t.Run(r.name, func(t *rig) {
				t.Parallel()
				r.test(t)
			})
		}
	}
}
