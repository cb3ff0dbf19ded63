package middleware

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// The operation of a request without a key is that of no client's key.
func TestOperationsWithoutAKeyAreSeparate(t *testing.T) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	g, err := guard.New(store, "orders")
	if err != nil {
		t.Fatal(err)
	}
	m := NewIdempotency(g, setting.Of([]policy.IdempotencyOption{policy.Dedupe(time.Second)}))
	op := m.Operation("u", "", []byte("content"))
	if same := m.Operation("u", "", []byte("content")); same.Key != op.Key {
		t.Errorf("%q and %q", op.Key, same.Key)
	}
	if other := m.Operation("u", "", []byte("other content")); other.Key == op.Key {
		t.Errorf("%q twice", op.Key)
	}
	for _, values := range [][]string{{op.Key}, {`"` + op.Key + `"`}} {
		if key, denial := IdempotencyKey(values, false); denial == nil {
			t.Errorf("a client may send the key %q", key)
		}
	}
	if key, denial := m.OwnKey(t.Context(), op.Key, nil, false); denial == nil {
		t.Errorf("the application may read the key %q", key)
	}
}
