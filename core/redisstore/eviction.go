package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// AllowEviction lets locks, semaphores, guards and queues of tasks work on a server whose
// maxmemory-policy may evict keys: a held lock, so that two can hold it, the record of an operation
// that has run, or a queue with all its tasks. Without this option they return an error that matches
// store.ErrMisconfigured on such a server.
func AllowEviction() Option { return func(c *config) { c.allowEviction = true } }

// checkEviction returns an error for a server that may evict locks, records and tasks, unless that
// is allowed. It reads the policy from INFO, since managed services forbid CONFIG. A server whose
// INFO does not have it is accepted with a warning.
func (s *Store) checkEviction(ctx context.Context, client *redis.Client) error {
	if s.config.allowEviction {
		return nil
	}
	info, err := client.Info(ctx, "memory").Result()
	if err != nil && (!script.Refused(err) || redisfault.IsUnauthenticated(err)) {
		return err
	}
	policy, known := infoField(info, "maxmemory_policy")
	if !known {
		if err == nil {
			err = errors.New("INFO does not have it")
		}
		s.config.logger.Warn("lockkeeper: cannot read maxmemory-policy of redis; locks, semaphores, guards and queues assume noeviction", "error", err)
		return nil
	}
	if policy != "noeviction" {
		return store.Misconfigured(store.Eviction, fmt.Errorf("redisstore: maxmemory-policy is %s, which may evict a held lock, "+
			"the record of an operation that has run, or a queue of tasks; set noeviction, or accept it with redisstore.AllowEviction", policy))
	}
	return nil
}

// infoField returns the value of a field of a reply to INFO.
func infoField(info, field string) (value string, ok bool) {
	for line := range strings.SplitSeq(info, "\r\n") {
		if name, value, ok := strings.Cut(line, ":"); ok && name == field {
			return value, true
		}
	}
	return "", false
}
