package hooks_test

import (
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
)

func TestListeners(t *testing.T) {
	var l hooks.Listeners
	l.Call("nobody")
	var heard []string
	l.Add(func(id string) { heard = append(heard, "a "+id) })
	remove := l.Add(func(id string) { heard = append(heard, "b "+id) })
	l.Call("1")
	remove()
	remove()
	l.Call("2")
	slices.Sort(heard)
	if want := []string{"a 1", "a 2", "b 1"}; !slices.Equal(heard, want) {
		t.Errorf("heard %v, want %v", heard, want)
	}
}
