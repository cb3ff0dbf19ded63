// Package keymatch finds the settings of a key among those of many keys and prefixes.
package keymatch

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// MaxLengths is the largest number of different lengths of prefixes in a [Table].
const MaxLengths = 16

// Table has values by patterns. A pattern is a key, or a prefix followed by an asterisk. An asterisk
// elsewhere stands for itself. A table does not change. A nil Table is empty.
//
// Get searches the lengths of prefixes by halves (Waldvogel, Varghese, Turner and Plattner, 1997): a
// prefix leaves a mark at each shorter length on the way to its own, which says that a longer one
// may match. So 16 lengths take five lookups at most.
type Table[V any] struct {
	exact  map[string]V
	levels []level[V] // the shortest prefixes first
}

// level is the prefixes and marks of one length.
type level[V any] struct {
	length int
	found  map[string]match[V]
}

// match is the longest pattern that matches a text.
type match[V any] struct {
	value V
	ok    bool // false if none matches
}

// New returns a table of the values that compile returns for the settings of patterns.
//
// It returns an error for a pattern that is empty, longer than a key may be or a bare asterisk, for
// prefixes of more than [MaxLengths] lengths, and for an error of compile. The text has the pattern
// if that is a prefix. Of a key it has the place among all patterns in byte order, since keys do not
// belong in logs.
func New[S, V any](by map[string]S, compile func(S) (V, error)) (*Table[V], error) {
	t := &Table[V]{exact: make(map[string]V)}
	prefixes := make(map[string]V)
	for i, pattern := range slices.Sorted(maps.Keys(by)) {
		err := check(pattern)
		var v V
		if err == nil {
			v, err = compile(by[pattern])
		}
		if err == nil {
			err = t.add(pattern, v, prefixes)
		}
		switch {
		case err == nil:
		case isPrefix(pattern) && len(pattern) <= naming.MaxKey:
			return nil, fmt.Errorf("pattern %q: %w", pattern, err)
		default:
			return nil, fmt.Errorf("pattern %d of %d in byte order: %w", i+1, len(by), err)
		}
	}
	t.index(prefixes)
	return t, nil
}

func isPrefix(pattern string) bool { return strings.HasSuffix(pattern, "*") }

func check(pattern string) error {
	if pattern == "*" {
		return errors.New("an asterisk alone is no prefix")
	}
	return naming.CheckKey(pattern)
}

func (t *Table[V]) add(pattern string, v V, prefixes map[string]V) error {
	if !isPrefix(pattern) {
		t.exact[pattern] = v
		return nil
	}
	prefix := pattern[:len(pattern)-1]
	prefixes[prefix] = v
	if slices.ContainsFunc(t.levels, func(l level[V]) bool { return l.length == len(prefix) }) {
		return nil
	}
	if len(t.levels) == MaxLengths {
		return fmt.Errorf("prefixes of more than %d lengths", MaxLengths)
	}
	t.levels = append(t.levels, level[V]{len(prefix), make(map[string]match[V])})
	return nil
}

// index enters the prefixes and their marks.
func (t *Table[V]) index(prefixes map[string]V) {
	slices.SortFunc(t.levels, func(a, b level[V]) int { return cmp.Compare(a.length, b.length) })
	for prefix := range prefixes {
		for low, high := 0, len(t.levels); low < high; {
			middle := (low + high) / 2
			l := &t.levels[middle]
			if len(prefix) < l.length {
				high = middle
				continue
			}
			text := prefix[:l.length]
			if _, ok := l.found[text]; !ok {
				l.found[text] = t.longest(text, prefixes)
			}
			low = middle + 1
		}
	}
}

// longest returns the longest prefix of a text.
func (t *Table[V]) longest(text string, prefixes map[string]V) match[V] {
	for i := len(t.levels) - 1; i >= 0; i-- {
		if n := t.levels[i].length; n <= len(text) {
			if v, ok := prefixes[text[:n]]; ok {
				return match[V]{v, true}
			}
		}
	}
	return match[V]{}
}

// Get returns the value of a key: that of the key itself, or else of its longest prefix. It returns
// false if there is neither.
func (t *Table[V]) Get(key string) (v V, ok bool) {
	if t == nil {
		return v, false
	}
	if v, ok = t.exact[key]; ok {
		return v, true
	}
	var last match[V]
	for low, high := 0, len(t.levels); low < high; {
		middle := (low + high) / 2
		l := &t.levels[middle]
		if len(key) >= l.length {
			if m, ok := l.found[key[:l.length]]; ok {
				last, low = m, middle+1
				continue
			}
		}
		high = middle
	}
	return last.value, last.ok
}
