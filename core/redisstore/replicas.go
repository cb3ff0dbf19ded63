package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ErrNotReplicated is matched by the error of a lock or permit that was granted, but not confirmed
// by the number of replicas of [WithReplicaAcks]. It was released, unless the error also matches
// store.ErrUnconfirmed. It matches store.ErrUnavailable.
var ErrNotReplicated = fmt.Errorf("%w: redisstore: too few replicas have confirmed the grant", store.ErrUnavailable)

// WithReplicaAcks grants locks and permits only after n replicas of the server have confirmed them,
// within timeout, which must be shorter than the store's own and than the client's ReadTimeout.
//
// A failover then loses less, but not nothing: a replica that has not confirmed may be promoted.
// While a slot of a Cluster is migrated, its locks may be unavailable.
func WithReplicaAcks(n int, timeout time.Duration) Option {
	return func(c *config) { c.acks, c.ackTimeout = n, timeout }
}

func (c *config) checkAcks(readTimeout time.Duration) error {
	switch {
	case c.acks == 0 && c.ackTimeout == 0:
		return nil
	case c.acks < 1:
		return fmt.Errorf("redisstore: New: a number of %d replicas is less than 1", c.acks)
	case c.ackTimeout < time.Millisecond || c.ackTimeout >= c.timeout:
		return fmt.Errorf("redisstore: New: a replica timeout of %v is not between 1ms and the store's timeout of %v",
			c.ackTimeout, c.timeout)
	case readTimeout > 0 && c.ackTimeout >= readTimeout:
		return fmt.Errorf("redisstore: New: a replica timeout of %v is not shorter than the client's ReadTimeout of %v",
			c.ackTimeout, readTimeout)
	}
	return nil
}

// notReplicated releases a grant that too few replicas have confirmed.
func (s *Store) notReplicated(ctx context.Context, acks int, release func(context.Context) error) error {
	err := fmt.Errorf("%w: %d of %d", ErrNotReplicated, acks, s.config.acks)
	failed := release(context.WithoutCancel(ctx))
	if failed != nil && !errors.Is(failed, store.ErrClosed) {
		return fmt.Errorf("%w: %w", store.ErrUnconfirmed, err)
	}
	return err
}
