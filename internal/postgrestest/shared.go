package postgrestest

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testpace"
)

// shared is the server that the tests of a test binary share.
var shared struct {
	sync.Mutex
	server *Server
	ends   []func()
}

var databases atomic.Int64

// Main runs the tests of a package, and stops the server that they share. Call it in TestMain.
func Main(m *testing.M) {
	code := testpace.Run(m)
	for _, end := range shared.ends {
		end()
	}
	os.Exit(code)
}

// Database returns the URL of a new database on a server that the tests of the test binary share,
// which Main stops.
func Database(t testing.TB) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil {
		shared.server = Start(&sharer{TB: t})
	}
	name := "test" + strconv.FormatInt(databases.Add(1), 10)
	createdb := exec.Command(shared.server.bin+"/createdb", "-h", "127.0.0.1", "-p", strconv.Itoa(shared.server.port), "-U", "postgres", name)
	if text, err := createdb.CombinedOutput(); err != nil {
		t.Fatalf("createdb: %v: %s", err, strings.TrimSpace(string(text)))
	}
	return shared.server.DSNOf(name)
}

// sharer is a test whose end is that of the test binary.
type sharer struct{ testing.TB }

func (s *sharer) Cleanup(f func()) { shared.ends = append(shared.ends, f) }
