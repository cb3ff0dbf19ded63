package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// lifecycle is what a [store.Store] has beside the interfaces of the mechanisms.
type lifecycle interface {
	Ping(ctx context.Context) error
	Shutdown(ctx context.Context) error
	Close() error
}

// lifecycleOf returns the lifecycle of a store, and skips a test of one that has none.
func lifecycleOf(t *testing.T, st any) lifecycle {
	t.Helper()
	l, ok := st.(lifecycle)
	if !ok {
		t.Skip("the store has no Ping, Shutdown and Close")
	}
	return l
}

// closes closes a store, and checks what every closed store does.
func closes(t *testing.T, st any) {
	t.Helper()
	l := lifecycleOf(t, st)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wantErrClosed(t, l.Ping(background()))
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

// shutsDown shuts a store down: from then on it refuses new requests, ends waits, and still serves
// requests that finish something.
func shutsDown(t *testing.T, st any) {
	t.Helper()
	if err := lifecycleOf(t, st).Shutdown(background()); err != nil {
		t.Fatal(err)
	}
}

func wantErrClosed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, store.ErrClosed) || !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v, want store.ErrClosed", err)
	}
}
