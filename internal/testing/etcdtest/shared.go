package etcdtest

import (
	"os"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// shared is the server that the tests of a test binary share.
var shared struct {
	sync.Mutex
	server *Server
	ends   []func()
}

// Main runs the tests of a package, and stops the server that they share. Call it in TestMain.
func Main(m *testing.M) {
	code := testpace.Run(m)
	for i := len(shared.ends) - 1; i >= 0; i-- {
		shared.ends[i]()
	}
	testproc.Leave()
	os.Exit(code)
}

// Shared returns a server that the tests of the test binary share, which Main stops. Each test has a
// prefix of its own. The server compacts every five minutes, as Check wants.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = Start(&sharer{TB: t}, "--auto-compaction-mode", "periodic", "--auto-compaction-retention", "5m")
	}
	return shared.server
}

// sharer is a test whose end is that of the test binary.
type sharer struct{ testing.TB }

func (s *sharer) Cleanup(f func()) { shared.ends = append(shared.ends, f) }
