package naming_test

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"api": true, "a b": true, `"quoted"`: true, strings.Repeat("n", 128): true,
		"": false, " a": false, "a ": false, "a\n": false, "é": false, "\x7f": false, strings.Repeat("n", 129): false,
	} {
		if err := naming.CheckName(name); (err == nil) != ok {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
}

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"k": true, "\x00é\n": true, strings.Repeat("k", 1024): true, "": false, strings.Repeat("k", 1025): false,
	} {
		if err := naming.CheckKey(key); (err == nil) != ok {
			t.Errorf("CheckKey of %d bytes = %v", len(key), err)
		}
	}
}

func TestNewID(t *testing.T) {
	seen := make(map[string]bool)
	for range 1000 {
		id := naming.NewID()
		if len(id) != 22 || seen[id] {
			t.Fatalf("NewID() = %q", id)
		}
		seen[id] = true
	}
}
