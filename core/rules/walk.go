package rules

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// walker walks a document by hand, and collects what is wrong with it: a decoder would stop at the
// first error, and lose the places of the errors that its types find.
type walker struct{ list []Error }

// fail records an error at a node.
func (w *walker) fail(n ast.Node, path, format string, args ...any) {
	line, column := place(n)
	w.list = append(w.list, Error{line, column, path, fmt.Sprintf(format, args...)})
}

// place returns where a node begins.
func place(n ast.Node) (line, column int) {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 { // its own token is a colon
			return place(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return place(n.Key)
	}
	return position(n.GetToken())
}

// describe returns what a node is, for people.
func describe(n ast.Node) string {
	switch n := n.(type) {
	case *ast.NullNode:
		return "nothing"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	default:
		if text, ok := scalar(n); ok {
			return quote(text)
		}
		return "what cannot stand here"
	}
}

// scalar returns the text of a scalar as it is written, but for quotes. Null is none.
func scalar(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// text returns the text of a scalar.
func (w *walker) text(n ast.Node, path, want string) (string, bool) {
	text, ok := scalar(n)
	if !ok {
		w.fail(n, path, "it is %s; want %s", describe(n), want)
	}
	return text, ok
}

// entry is a key of a mapping, and its value.
type entry struct {
	key          string
	node         ast.Node // the key
	value        ast.Node
	path         string
	line, column int // of the key
}

// entries calls f for each key of a mapping, and reports whether it is one. A key that was given
// before is an error.
func (w *walker) entries(n ast.Node, path, want string, f func(entry)) bool {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		w.fail(n, path, "it is %s; want %s", describe(n), want)
		return false
	}
	lines := make(map[string]int, len(values))
	for _, v := range values {
		e := entry{node: v.Key, value: v.Value}
		e.line, e.column = place(v.Key)
		key, ok := scalar(v.Key)
		if !ok {
			w.fail(v.Key, path, "a key is %s; want text", describe(v.Key))
			continue
		}
		e.key, e.path = key, join(path, key)
		if first, ok := lines[key]; ok {
			w.fail(v.Key, e.path, "it is given twice, first in line %d", first)
			continue
		}
		lines[key] = e.line
		if _, null := v.Value.(*ast.NullNode); null { // also in a file that is half written
			w.fail(v.Key, e.path, "it has no value")
			continue
		}
		f(e)
	}
	return true
}

func join(path, key string) string {
	if len(key) > maxQuoted || strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || strings.ContainsRune(`".[]`, r) }) {
		key = quote(key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// fields are the fields of a mapping by name, each with a function for its value.
type fields map[string]func(e entry)

// fields walks a mapping with a known set of keys, and returns the ones that it has: nil if it is
// no mapping.
func (w *walker) fields(n ast.Node, path, want string, known fields) map[string]ast.Node {
	given := make(map[string]ast.Node)
	if !w.entries(n, path, want, func(e entry) {
		f := known[e.key]
		if f == nil {
			w.fail(e.node, path, "the field %s is not known; want %s", quote(e.key), orList(slices.Sorted(maps.Keys(known))))
			return
		}
		given[e.key] = e.node
		f(e)
	}) {
		return nil
	}
	return given
}

// items calls f for each item of a list that has one at least.
func (w *walker) items(n ast.Node, path, want string, f func(n ast.Node, path string)) {
	list, ok := n.(*ast.SequenceNode)
	switch {
	case !ok:
		w.fail(n, path, "it is %s; want %s", describe(n), want)
		return
	case len(list.Values) == 0:
		w.fail(n, path, "the list is empty; want %s", want)
	}
	for i, item := range list.Values {
		f(item, path+"["+strconv.Itoa(i)+"]")
	}
}

// capacity returns a capacity.
func (w *walker) capacity(e entry) int {
	want := fmt.Sprintf("a whole number from 1 to %d", store.MaxCapacity)
	if t := e.value.GetToken().Type; t == token.SingleQuoteType || t == token.DoubleQuoteType {
		w.fail(e.value, e.path, "it is text, %s; want %s", describe(e.value), want)
		return 0
	}
	text, ok := w.text(e.value, e.path, want)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > store.MaxCapacity || strconv.Itoa(n) != text {
		w.fail(e.value, e.path, "it is %s; want %s", quote(text), want)
		return 0
	}
	return n
}

// share returns a percentage as a part of 1: more than 0 and at most 1, or 0 for a wrong one.
func (w *walker) share(e entry) float64 {
	const want = "more than 0% and at most 100%, such as 10%"
	text, ok := w.text(e.value, e.path, want)
	if !ok {
		return 0
	}
	number, percent := strings.CutSuffix(text, "%")
	f, err := strconv.ParseFloat(number, 64)
	if !percent || err != nil || strings.Trim(number, "0123456789.") != "" || !(f > 0 && f <= 100) {
		w.fail(e.value, e.path, "it is %s; want %s", quote(text), want)
		return 0
	}
	return f / 100
}

// oneOf returns a text that is one of some.
func (w *walker) oneOf(e entry, texts ...string) string {
	want := "one of " + orList(texts)
	text, ok := w.text(e.value, e.path, want)
	if ok && !slices.Contains(texts, text) {
		w.fail(e.value, e.path, "it is %s; want %s", quote(text), want)
		return ""
	}
	return text
}

// orList returns "a, b or c".
func orList(texts []string) string {
	if len(texts) < 2 {
		return strings.Join(texts, "")
	}
	return strings.Join(texts[:len(texts)-1], ", ") + " or " + texts[len(texts)-1]
}
