package keys_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// chosen matches a limit, a scope, or the first of several keys, by a value of the client.
var chosen = regexp.MustCompile(`(ScopeBy|FirstOf|ratelimit\.New|idempotency\.New)\([^\n]*By(Header|Cookie|Metadata)\(`)

// No documentation and no example limits or scopes by a value that clients choose.
func TestExamplesDoNotLetClientsChooseTheirKey(t *testing.T) {
	const root = "../../.."
	read := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && (name == "benchmarks" || name == "testing" || name == ".git"):
			return fs.SkipDir
		case d.IsDir(), filepath.Ext(name) != ".go" && filepath.Ext(name) != ".md",
			strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "example"):
			return nil
		}
		text, err := os.ReadFile(path) //nolint:gosec // the repository's own
		if err != nil {
			return err
		}
		read++
		for _, found := range chosen.FindAll(text, -1) {
			t.Errorf("%s: %s", path, found)
		}
		return nil
	})
	if err != nil || read < 100 {
		t.Fatalf("read %d files, %v", read, err)
	}
}
