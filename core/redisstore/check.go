package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// checkPings is the number of round trips of which Check takes the median.
const checkPings = 5

// Check checks the settings of every node on which promises depend, and measures the round trip.
// Call it when a service starts, and log its result: nil, or an error for each of these, joined.
//   - The node may evict keys of locks and guards (maxmemory-policy), or is a replica.
//   - The node is so far away that a new connection, which takes about three round trips, or a reply takes longer
//     than the store's timeout: the error has the value for [WithTimeout].
//   - The client keeps no idle connections (MinIdleConns) to a node that is more than a tenth of the timeout away: a
//     burst of calls would have to wait for connections.
//
// Settings that the server does not let the client read are not checked. If a node cannot be
// reached, the error matches store.ErrUnavailable.
func (s *Store) Check(ctx context.Context) error {
	masters, err := s.redis.Masters(ctx)
	if err != nil {
		return err
	}
	var found []error
	for _, master := range masters {
		found = append(found, s.checkNode(ctx, master)...)
	}
	return errors.Join(found...)
}

func (s *Store) checkNode(ctx context.Context, master *redis.Client) (found []error) {
	// Only the caller's deadline applies, since the time is to be measured.
	far, err := roundTrip(ctx, master)
	if err != nil {
		return []error{redisfault.Explain(err, false)}
	}
	at, timeout := master.Options().Addr, s.config.timeout
	if need := 4 * far; need > timeout {
		found = append(found, fmt.Errorf("redisstore: %s is %v away: set WithTimeout to %v or more, from %v",
			at, far.Round(time.Millisecond), need.Round(10*time.Millisecond), timeout))
	}
	if far > timeout/10 && master.Options().MinIdleConns == 0 {
		found = append(found, fmt.Errorf("redisstore: %s is %v away: set the client's MinIdleConns, so that bursts find connections",
			at, far.Round(time.Millisecond)))
	}
	if err := s.checkEviction(ctx, master); err != nil {
		found = append(found, redisfault.Explain(err, false))
	}
	role, err := master.Do(ctx, "role").Slice()
	switch {
	case isForbidden(err):
	case err != nil:
		found = append(found, redisfault.Explain(err, false))
	case len(role) > 0 && role[0] != "master":
		found = append(found, store.Misconfigured(store.ReadOnly, fmt.Errorf("redisstore: %s is a %v, which takes no writes", at, role[0])))
	}
	return found
}

// roundTrip returns the median of several round trips on an established connection.
func roundTrip(ctx context.Context, client *redis.Client) (time.Duration, error) {
	conn := client.Conn()
	defer func() { _ = conn.Close() }()
	if err := conn.Ping(ctx).Err(); err != nil && !isForbidden(err) {
		return 0, err
	}
	took := make([]time.Duration, checkPings)
	for i := range took {
		began := time.Now()
		if err := conn.Ping(ctx).Err(); err != nil && !isForbidden(err) {
			return 0, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// isForbidden reports whether the server refused the command.
func isForbidden(err error) bool {
	return redisfault.IsReply(err) && !redisfault.IsUnauthenticated(err)
}
