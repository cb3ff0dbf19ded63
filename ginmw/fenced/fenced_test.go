package fenced_test

import (
	"net/http"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/fenced"
	"github.com/lockkeeper/lockkeeper/internal/mwtest/wiring"
	"github.com/lockkeeper/lockkeeper/nethttp"
)

// What the compiler cannot see ends the program when it starts, not when a request comes.
func TestWiringMistakesPanic(t *testing.T) {
	marks, err := memfence.New()
	if err != nil {
		t.Fatal(err)
	}
	var none *memfence.Fence
	unless := nethttp.Unless(func(*http.Request) bool { return false })
	wiring.Panics(t, map[string]func(){
		"fenced: New: nil checker": func() { fenced.New(none, ginmw.Global()) },
		"fenced: New: nil key":     func() { fenced.New(marks, nil) },
		"fenced: New: an option of another framework (func(*http.Request) bool)": func() { fenced.New(marks, ginmw.Global(), unless) },
	})
}
