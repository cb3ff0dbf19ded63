package redisserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	masters = 3
	slots   = 16384
)

// StartCluster starts three masters without replicas that share the slots. The caller has to stop
// each of them.
func StartCluster(ctx context.Context, args ...string) (servers []*Server, err error) {
	defer func() {
		if err != nil {
			for _, s := range servers {
				s.Stop()
			}
			servers, err = nil, fmt.Errorf("redisserver: cluster: %w", err)
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, 2*patience, fmt.Errorf("not formed in %v", 2*patience))
	defer cancel()
	var buses []int
	for i := range masters {
		bus, err := FreePort()
		if err != nil {
			return servers, err
		}
		server, err := Start(ctx, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
		}, args...)...)
		if err != nil {
			return servers, err
		}
		servers, buses = append(servers, server), append(buses, bus)
		if err := server.client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(); err != nil {
			return servers, err
		}
		if err := server.client.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err(); err != nil {
			return servers, err
		}
	}
	for i, server := range servers[1:] {
		if err := servers[0].client.Do(ctx, "cluster", "meet", "127.0.0.1", server.port, buses[i+1]).Err(); err != nil {
			return servers, err
		}
	}
	for _, server := range servers {
		if err := agreed(ctx, server.client); err != nil {
			return servers, err
		}
	}
	return servers, nil
}

// agreed blocks until a master knows the owners of all slots.
func agreed(ctx context.Context, client *redis.Client) error {
	return until(ctx, func() (bool, error) {
		info, err := client.ClusterInfo(ctx).Result()
		return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_slots_ok:"+strconv.Itoa(slots)), err
	})
}

// until polls until a condition holds, fails, or ctx ends.
func until(ctx context.Context, holds func() (bool, error)) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := holds(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AddReplicas starts a replica of each of the masters of a Cluster, with the same arguments as
// StartCluster, and returns when they are in sync. The caller has to stop each of them.
func AddReplicas(ctx context.Context, masters []*Server, args ...string) (replicas []*Server, err error) {
	defer func() {
		if err != nil {
			for _, s := range replicas {
				s.Stop()
			}
			replicas, err = nil, fmt.Errorf("redisserver: replicas: %w", err)
		}
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, 3*patience, fmt.Errorf("not in sync in %v", 3*patience))
	defer cancel()
	for _, master := range masters {
		bus, err := FreePort()
		if err != nil {
			return replicas, err
		}
		replica, err := Start(ctx, append([]string{
			"--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus),
		}, args...)...)
		if err != nil {
			return replicas, err
		}
		replicas = append(replicas, replica)
		if err := master.client.Do(ctx, "cluster", "meet", "127.0.0.1", replica.port, bus).Err(); err != nil {
			return replicas, err
		}
	}
	for i, replica := range replicas {
		id, err := masters[i].client.ClusterMyID(ctx).Result()
		if err != nil {
			return replicas, err
		}
		// The replica has to hear of its master first.
		err = until(ctx, func() (bool, error) { return replica.client.ClusterReplicate(ctx, id).Err() == nil, nil })
		if err != nil {
			return replicas, err
		}
	}
	for _, replica := range replicas {
		if err := replica.InSync(ctx); err != nil {
			return replicas, err
		}
	}
	return replicas, nil
}

// InSync blocks until a replica has the data of its master.
func (s *Server) InSync(ctx context.Context) error {
	return until(ctx, func() (bool, error) {
		info, err := s.info(ctx, "replication")
		return err == nil && info["role"] == "slave" && info["master_link_status"] == "up", nil
	})
}
