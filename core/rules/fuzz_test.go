package rules

import (
	"slices"
	"testing"
	"unicode/utf8"
)

// FuzzCheck looks for documents that panic, and for errors without a place in the document.
func FuzzCheck(f *testing.F) {
	for _, c := range bad {
		if len(c.text) < 1<<10 {
			f.Add([]byte(c.text))
		}
	}
	for _, text := range good {
		if len(text) < 1<<11 {
			f.Add([]byte(text))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list := listOf(t, Check(text))
		for _, e := range list {
			if e.Line < 1 || e.Column < 1 || e.Text == "" || !utf8.ValidString(e.Error()) {
				t.Errorf("%+v", e)
			}
		}
		if !slices.IsSortedFunc(list, func(a, b Error) int {
			if a.Line != b.Line {
				return a.Line - b.Line
			}
			return a.Column - b.Column
		}) {
			t.Errorf("the errors are not in the order of their places: %v", list)
		}
	})
}
