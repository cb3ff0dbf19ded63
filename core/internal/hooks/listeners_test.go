package hooks_test

import (
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
)

func TestListeners(t *testing.T) {
	var l hooks.Listeners
	l.Call("0")
	var calls []string
	l.Add(func(id string) { calls = append(calls, "a "+id) })
	remove := l.Add(func(id string) { calls = append(calls, "b "+id) })
	l.Call("1")
	remove()
	remove()
	l.Call("2")
	slices.Sort(calls)
	if want := []string{"a 1", "a 2", "b 1"}; !slices.Equal(calls, want) {
		t.Errorf("called with %v, want %v", calls, want)
	}
}
