package main

import (
	"context"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

// reconcile finds out what became of a payment, for guard.WithReconcile. It places the order of one
// that was charged.
func (s *shop) reconcile(ctx context.Context, r guard.Record) (guard.Resolution, error) {
	charged, found, err := s.provider.find(ctx, r.ID)
	switch {
	case err != nil:
		return guard.Resolution{}, err
	case !found: // a charge that arrives even later has the key of the next attempt: one of them counts
		return guard.NeverHappened(), nil
	}
	header, body, err := s.place(ctx, r.ID, charged, nil)
	if err != nil {
		return guard.Resolution{}, err
	}
	return guard.Happened(idempotency.Answer(http.StatusCreated, header, body)), nil
}
