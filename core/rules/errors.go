package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Error is one thing that is wrong with a document, and its place.
type Error struct {
	Line, Column int    // from 1; a column is a character, not a byte
	Path         string // such as limits.api.overrides[2].keys; empty for the document as a whole
	Text         string
}

// Error returns the place and the text: "4:12: limits.api.limit: …". The text may quote the
// document, keys included.
func (e *Error) Error() string {
	place := fmt.Sprintf("%d:%d: ", e.Line, e.Column)
	if e.Path != "" {
		place += e.Path + ": "
	}
	return place + e.Text
}

// Errors is all that is wrong with a document, by place. It has one error at least.
type Errors struct{ List []Error }

// shownErrors is how many errors the text of an Errors has.
const shownErrors = 20

// Error returns a line for each error, for the first 20 of them.
func (e *Errors) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "rules: the document has %d errors", len(e.List))
	if len(e.List) == 1 {
		b.Reset()
		b.WriteString("rules: the document has an error")
	}
	for i := range e.List {
		if i == shownErrors {
			fmt.Fprintf(&b, "\n%d more", len(e.List)-i)
			break
		}
		b.WriteString("\n" + e.List[i].Error())
	}
	return b.String()
}

// Unwrap returns the errors, each an *[Error].
func (e *Errors) Unwrap() []error {
	all := make([]error, len(e.List))
	for i := range e.List {
		all[i] = &e.List[i]
	}
	return all
}

// errorsOf returns an *Errors of a list, by place, or nil.
func errorsOf(list []Error) error {
	if len(list) == 0 {
		return nil
	}
	slices.SortStableFunc(list, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return &Errors{list}
}
