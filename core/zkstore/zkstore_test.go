package zkstore

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

func TestMain(m *testing.M) {
	testpace.InShort("^Test(Leases|Latches)$") // the contract
	zktest.Main(m)
}

var _ = leaktest.Main

// lenient is the timeout of stores whose server has nothing to do with the test.
var lenient = testpace.Scale(10 * time.Second)

// open returns a store, closed when the test ends.
func open(t testing.TB, servers []string, opts ...Option) *Store {
	t.Helper()
	s, err := New(servers, append([]Option{WithTimeout(lenient)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// newTestStore returns a store on the shared server, with nodes of its own.
func newTestStore(t testing.TB, opts ...Option) *Store {
	t.Helper()
	return open(t, []string{zktest.Shared(t).Addr()}, append([]Option{WithChroot(zktest.NewChroot())}, opts...)...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// suiteSession has room for the TTLs of the suite.
const suiteSession = 230 * time.Second

func TestLeases(t *testing.T) {
	t.Parallel()
	storetest.Leases(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		test(t, storetest.Harness[*Store]{
			Store: newTestStore(t, WithSession(suiteSession)), Advance: time.Sleep, Except: storetest.ExceptionsOf("zookeeper").Leases,
		})
	})
}

func TestLatches(t *testing.T) {
	t.Parallel()
	storetest.Latches(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		test(t, storetest.Harness[*Store]{Store: newTestStore(t, WithSession(suiteSession)), Advance: time.Sleep})
	})
}
