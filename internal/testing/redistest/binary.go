package redistest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// Others names the variable with the paths of further server binaries, joined by commas.
const Others = "LOCKKEEPER_REDIS"

// Binary is the path of a binary that takes the arguments of redis-server.
type Binary string

// Binaries returns the binaries that the variable Others names. It skips the test if there are none.
func Binaries(t testing.TB) (all []Binary) {
	t.Helper()
	for path := range strings.SplitSeq(os.Getenv(Others), ",") {
		if path = strings.TrimSpace(path); path != "" {
			all = append(all, Binary(path))
		}
	}
	if len(all) == 0 {
		t.Skipf("%s names no server binaries", Others)
	}
	return all
}

var version = regexp.MustCompile(`^(\w+) server v=(\S+)`)

// Version returns the binary's product and version, such as "Redis 7.0.15". It fails the test if the
// binary does not run.
func (b Binary) Version(t testing.TB) string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), string(b), "--version").Output()
	if err != nil {
		t.Fatalf("%s --version: %v", b, err)
	}
	found := version.FindSubmatch(text)
	if found == nil {
		t.Fatalf("%s --version: %q names no version", b, text)
	}
	return string(found[1]) + " " + string(found[2])
}
