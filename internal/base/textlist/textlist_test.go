package textlist_test

import (
	"bytes"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
)

func TestListsAreUnambiguous(t *testing.T) {
	lists := [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"", "ab"}, {"ab", ""}, {"a\x00\x00\x00\x00\x00\x00\x00\x01b"}}
	for i, a := range lists {
		for _, b := range lists[:i] {
			if bytes.Equal(textlist.Append(nil, a...), textlist.Append(nil, b...)) {
				t.Errorf("%q and %q are the same bytes", a, b)
			}
		}
	}
}

// Records of operations are found by these hashes, also after an update.
func TestBytesAreStable(t *testing.T) {
	const want = "x\x00\x00\x00\x00\x00\x00\x00\x02ab\x00\x00\x00\x00\x00\x00\x00\x00"
	if got := textlist.Append([]byte("x"), "ab", ""); string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}
