package zktest

import (
	"crypto/rand"
	"os"
	"sync"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// shared are the servers that the tests of a test binary share.
var shared struct {
	sync.Mutex
	server *Server
	three  []*Server
	ends   []func()
}

// Main runs the tests of a package, and stops the servers that they share. Call it in TestMain.
func Main(m *testing.M) { os.Exit(End(testpace.Run(m))) }

// End stops the servers that tests share, and returns the exit code, for a TestMain that does more.
func End(code int) int {
	for _, end := range shared.ends {
		end()
	}
	testproc.Leave()
	return code
}

// Shared returns a server that the tests of the test binary share, which Main stops.
func Shared(t testing.TB) *Server {
	t.Helper()
	program(t) // a test that is skipped must not keep the mutex
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = Start(&sharer{TB: t})
	}
	return shared.server
}

// NewChroot returns a path that no other test uses.
func NewChroot() string { return "/" + rand.Text() }

// sharer is a test whose end is that of the test binary.
type sharer struct{ testing.TB }

func (s *sharer) Cleanup(f func()) { shared.ends = append(shared.ends, f) }
