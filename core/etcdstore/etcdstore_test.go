package etcdstore

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestMain(m *testing.M) {
	testpace.InShort("^Test(Leases|Latches|Documents)$") // the contract
	etcdtest.Main(m)
}

// lenient is a timeout that a busy machine does not reach.
const lenient = 10 * time.Second

// connect returns a client of servers, closed when the test ends.
func connect(t testing.TB, endpoints ...string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// open returns a store on a client, closed when the test ends. Unless an option sets it, its timeout is
// long, and its prefix the test's own.
func open(t testing.TB, c *clientv3.Client, opts ...Option) *Store {
	t.Helper()
	s, err := New(c, append([]Option{WithTimeout(lenient)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// newPrefix returns the prefix of a test.
func newPrefix() string { return "test-" + naming.NewID() }

func newTestStore(t testing.TB, opts ...Option) *Store {
	t.Helper()
	return open(t, connect(t, etcdtest.Shared(t).URL()), append([]Option{WithPrefix(newPrefix())}, opts...)...)
}

func runner(t *testing.T, except map[string]string) storetest.Runner[*Store] {
	c := connect(t, etcdtest.Shared(t).URL())
	return func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		test(t, storetest.Harness[*Store]{Store: open(t, c, WithPrefix(newPrefix())), Advance: time.Sleep, Except: except})
	}
}

func TestLeases(t *testing.T) {
	t.Parallel()
	storetest.Leases(t, runner(t, storetest.ExceptionsOf("etcd").Leases))
}

func TestLatches(t *testing.T) {
	t.Parallel()
	storetest.Latches(t, runner(t, storetest.ExceptionsOf("etcd").Latches))
}
