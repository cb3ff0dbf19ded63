package middleware_test

import (
	"context"
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// answering is a fence.Checker that replies with an error.
type answering struct{ err error }

func (a answering) Check(context.Context, string, fence.Token) error { return a.err }

func anyKey() (string, error) { return "key", nil }

// A request of a disconnected client does not run, and is no outage.
func TestDisconnectedClientDoesNotRunUnfenced(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	m := middleware.NewFence(answering{store.ErrUnavailable}, setting.Settings{Open: setting.Open{Passes: true}})
	if passage, denial := m.Check(t.Context(), []string{"1"}, anyKey); denial != nil || !errors.Is(passage.Bypassed, store.ErrUnavailable) {
		t.Errorf("a client that waits: %+v, %+v", passage, denial)
	}
	if passage, denial := m.Check(left, []string{"1"}, anyKey); denial == nil || denial.Reason != policy.ReducedCapacity {
		t.Errorf("a client that has left: %+v, %+v", passage, denial)
	}
	m = middleware.NewFence(answering{context.Canceled}, setting.Settings{Open: setting.Open{Passes: true}})
	if passage, denial := m.Check(left, []string{"1"}, anyKey); denial == nil || denial.Reason != policy.ReducedCapacity {
		t.Errorf("a checker that gave up with it: %+v, %+v", passage, denial)
	}
}
