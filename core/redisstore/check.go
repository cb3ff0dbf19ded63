package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/clockcheck"
	"github.com/lockkeeper/lockkeeper/core/internal/redisfault"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// checkPings is the number of round trips of which Check takes the median.
const checkPings = 5

var _ store.Checker = (*Store)(nil)

// Check implements store.Checker. It reports, for every node:
//   - The node refuses writes: it is a replica, cannot save its data, has too few replicas in step,
//     is full, loads its data, is busy with a script, belongs to a Cluster that is down, or denies
//     them to the store's user. A node that refuses more than new data is checked no further,
//     except for its distance.
//   - The node may evict keys of locks, semaphores, guards and queues (maxmemory-policy): their
//     steps are refused.
//   - The node loses acknowledged writes with a restart (appendonly) or a crash of its machine
//     (appendfsync), or with a failover to a replica, if the store does not wait for replicas
//     ([WithReplicaAcks]).
//   - Its clock differs from this machine's by more than a second.
//   - The node is so far away that a new connection, which takes about three round trips, or a
//     reply takes longer than the store's timeout: the remedy has the value for [WithTimeout].
//   - The client keeps no idle connections (MinIdleConns) to a node that is more than a tenth of
//     the timeout away: a burst of calls has to wait for connections.
//
// The error for a server that cannot be reached, or that refuses the client, ends with the remedy if
// there is one.
func (s *Store) Check(ctx context.Context) (found []store.Finding, err error) {
	masters, err := s.redis.Masters(ctx)
	if err != nil {
		return nil, advise(err, err)
	}
	for _, master := range masters {
		findings, err := s.checkNode(ctx, master)
		if err != nil {
			return nil, advise(redisfault.Explain(err, false, false), err)
		}
		found = append(found, findings...)
	}
	return found, nil
}

// advise adds the remedy for the cause of an error.
func advise(err, cause error) error {
	r, _ := redisfault.Find(cause)
	if r.Remedy == "" && redisfault.IsUnreachable(cause) {
		r.Remedy = "Start the server, or set its address in the client's options"
	}
	if r.Remedy == "" {
		return err
	}
	return fmt.Errorf("%w (%s)", err, r.Remedy)
}

func (s *Store) checkNode(ctx context.Context, master *redis.Client) (found []store.Finding, err error) {
	// The time is to be measured, so only the caller's deadline applies.
	far, err := roundTrip(ctx, master)
	if err != nil {
		return nil, err
	}
	at := master.Options().Addr
	found = s.checkDistance(far, master)
	if r, refuses := redisfault.Find(s.redis.TryWrite(ctx, master)); refuses && r.Is != "" {
		found = append(found, store.Finding{
			Found: at + " " + r.Is, Weakens: "every step that writes is refused", Remedy: r.Remedy, Refused: r.Cause,
		})
		if r.Verdict != redisfault.Full { // it may refuse all other commands
			return found, nil
		}
	}
	switch err := s.checkEviction(ctx, master); {
	case errors.Is(err, store.ErrMisconfigured):
		found = append(found, store.Finding{
			Found: "the maxmemory-policy of " + at + " evicts keys",
			Weakens: "a held lock may be evicted, so that two hold it, the record of an operation that has run, or a queue " +
				"with all its tasks; locks, semaphores, guards and queues are refused",
			Remedy: "Set maxmemory-policy to noeviction, or accept it with redisstore.AllowEviction", Refused: store.Eviction,
		})
	case err != nil:
		return nil, err
	}
	for _, check := range []func(context.Context, *redis.Client) ([]store.Finding, error){s.checkReplication, checkPersistence, checkClock} {
		findings, err := check(ctx, master)
		if err != nil && !isForbidden(err) {
			return nil, err
		}
		found = append(found, findings...)
	}
	return found, nil
}

func (s *Store) checkDistance(far time.Duration, master *redis.Client) (found []store.Finding) {
	is, timeout := fmt.Sprintf("%s is %v away", master.Options().Addr, far.Round(time.Millisecond)), s.config.timeout
	if need := 4 * far; need > timeout {
		found = append(found, store.Finding{
			Found: is, Weakens: fmt.Sprintf("new connections and replies may take longer than the timeout of %v", timeout),
			Remedy: fmt.Sprintf("Set redisstore.WithTimeout to %v or more", need.Round(10*time.Millisecond)),
		})
	}
	if far > timeout/10 && master.Options().MinIdleConns == 0 {
		found = append(found, store.Finding{
			Found: is + ", and the client keeps no idle connections", Weakens: "a burst of calls has to wait for connections",
			Remedy: "Set the client's MinIdleConns",
		})
	}
	return found
}

func (s *Store) checkReplication(ctx context.Context, master *redis.Client) ([]store.Finding, error) {
	at := master.Options().Addr
	role, err := master.Do(ctx, "role").Slice()
	switch {
	case err != nil || len(role) == 0:
		return nil, err
	case s.config.acks > 0 || len(role) < 3:
		return nil, nil
	}
	if replicas, ok := role[2].([]any); !ok || len(replicas) == 0 {
		return nil, nil
	}
	return []store.Finding{{
		Found: at + " has replicas, and the store does not wait for them",
		Weakens: "a failover may lose the last grants, charges, results and tasks, so that two hold a lock, an operation runs " +
			"again, or a task never runs",
		Remedy: "Use redisstore.WithReplicaAcks for locks and permits, check fences, compare tasks with your data, " +
			"and set min-replicas-to-write",
	}}, nil
}

// lostByCrash is the possible cost of what a server has lost.
const lostByCrash = "two may hold a lock, an operation that has finished may run again, and a task may never run, or run again"

func checkPersistence(ctx context.Context, master *redis.Client) ([]store.Finding, error) {
	at := master.Options().Addr
	info, err := master.Info(ctx, "persistence").Result()
	if err != nil {
		return nil, err
	}
	if kept, known := infoField(info, "aof_enabled"); known && kept == "0" {
		return []store.Finding{{
			Found:   at + " keeps no append-only file",
			Weakens: "a restart loses what came after the last snapshot: " + lostByCrash,
			Remedy:  "Set appendonly to yes",
		}}, nil
	}
	settings, err := master.ConfigGet(ctx, "appendfsync").Result()
	if sync := settings["appendfsync"]; err == nil && sync != "" && sync != "always" {
		return []store.Finding{{
			Found:   fmt.Sprintf("appendfsync of %s is %s", at, sync),
			Weakens: "a crash of its machine loses the last second, or more: " + lostByCrash,
			Remedy:  "Set appendfsync to always, if locks without fences, operations or tasks must survive that",
		}}, nil
	}
	return nil, err
}

func checkClock(ctx context.Context, master *redis.Client) ([]store.Finding, error) {
	sent := time.Now()
	shown, err := master.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	return clockcheck.Finding(master.Options().Addr, shown, sent, time.Now()), nil
}

// roundTrip returns the median of several round trips. Few of them, if any, wait for a connection to be
// made. One of client.Conn would be made beside those of the client with a data race on its options
// (go-redis 9.23).
func roundTrip(ctx context.Context, client *redis.Client) (time.Duration, error) {
	took := make([]time.Duration, checkPings)
	for i := range took {
		began := time.Now()
		if err := client.Ping(ctx).Err(); err != nil && !isForbidden(err) {
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
