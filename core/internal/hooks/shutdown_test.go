package hooks_test

import (
	"context"
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
)

func TestHooks(t *testing.T) {
	var h hooks.Shutdown
	if err := h.Run(t.Context()); err != nil {
		t.Errorf("no hooks: %v", err)
	}
	first, second := errors.New("first"), errors.New("second")
	meet := make(chan struct{})
	h.AtShutdown(func(context.Context) error { meet <- struct{}{}; return first })
	h.AtShutdown(func(context.Context) error { <-meet; return second }) // neither waits for the other
	h.AtShutdown(func(ctx context.Context) error { return ctx.Err() })
	remove := h.AtShutdown(func(context.Context) error { t.Error("called after its removal"); return nil })
	remove()
	remove()
	for range 2 {
		if err := h.Run(t.Context()); !errors.Is(err, first) || !errors.Is(err, second) {
			t.Errorf("Run: %v, want both errors", err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.Run(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v, want the context to reach the hooks", err)
	}
}
