package memstore_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func TestCheck(t *testing.T) {
	s := memstore.New()
	found, err := s.Check(t.Context())
	if err != nil || len(found) != 1 || !strings.Contains(found[0].String(), "of this process") || !strings.Contains(found[0].Weakens, "task") {
		t.Errorf("found %v, %v", found, err)
	}
	_ = s.Close()
	if _, err := s.Check(t.Context()); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
