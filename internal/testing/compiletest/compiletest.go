// Package compiletest tests that programs do not compile.
package compiletest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program makes a mechanism on a store, of which it needs the package, and the call.
const program = `package main

import (
	"github.com/lockkeeper/lockkeeper/core/%[1]s"
	"github.com/lockkeeper/lockkeeper/core/%[2]s"
)

func main() {
	var st *%[1]s.Store
	_, err := %[2]s.New(st, "name"%[3]s)
	panic(err)
}
`

// Leases tests that a store, the package core/name, has leases alone: programs with a limiter, a
// guard or a queue of delayed tasks on it do not compile, with an error that names what the store does
// not implement. One with a lock does. It runs the compiler in the directory of the test.
func Leases(t *testing.T, name string) {
	t.Helper()
	for _, c := range []struct{ mechanism, arguments, want string }{
		{"lock", "", ""},
		{"tokenbucket", ", tokenbucket.PerSecond(1)", "store.Buckets"},
		{"guard", "", "store.Records"},
		{"delay", "", "store.Delays"},
	} {
		t.Run(c.mechanism, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, fmt.Appendf(nil, program, name, c.mechanism, c.arguments), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput()
			switch refusal := "*" + name + ".Store does not implement " + c.want; {
			case c.want == "" && err != nil:
				t.Errorf("%v:\n%s", err, out)
			case c.want != "" && (err == nil || !strings.Contains(string(out), refusal)):
				t.Errorf("%v, want an error with %q:\n%s", err, refusal, out)
			}
		})
	}
}
