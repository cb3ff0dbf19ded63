package etcdstore

import (
	"context"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Check implements store.Checker. It finds:
//   - A member is of a release in which a leader that has lost its post may end the leases of all
//     clients: 3.4 before 3.4.31, and 3.5 before 3.5.13.
//   - A member cannot be reached from here, or knows no leader.
//   - The number of members is even.
//   - The client names one endpoint of several members.
//   - An alarm is raised: the database is full, or damaged.
//   - A database has more than 80 % of its quota: of the default quota of 2 GiB, if the server does not
//     tell, as before 3.6.
//   - The history was never compacted, and has more than 10,000 revisions, as without auto-compaction.
//
// It reads nothing that needs a right on keys, but for those of the prefix. If the user may not list
// members or alarms, it skips what depends on them.
func (s *Store) Check(ctx context.Context) ([]store.Finding, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	if err := s.checkRelease(ctx); err != nil {
		return nil, err
	}
	reply, err := run(ctx, s, opVerify, func(ctx context.Context, _ bool) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, s.fenceKey())
	})
	if err != nil {
		return nil, err
	}
	var found []store.Finding
	for _, check := range []func(context.Context) []store.Finding{
		s.checkMembers, s.checkAlarms, func(ctx context.Context) []store.Finding { return s.checkHistory(ctx, reply.Header.Revision) },
	} {
		found = append(found, check(ctx)...)
	}
	return found, ctx.Err()
}

func (s *Store) checkMembers(ctx context.Context) (found []store.Finding) {
	endpoints := s.client.Endpoints()
	members, err := run(ctx, s, opVerify, func(ctx context.Context, _ bool) (*clientv3.MemberListResponse, error) {
		return s.client.MemberList(ctx)
	})
	if err == nil {
		endpoints = nil
		voters := 0
		for _, m := range members.Members {
			if !m.IsLearner {
				voters++
			}
			if len(m.ClientURLs) > 0 {
				endpoints = append(endpoints, m.ClientURLs[0])
			}
		}
		if voters%2 == 0 {
			found = append(found, store.Finding{
				Found:   fmt.Sprintf("the cluster has %d members", voters),
				Weakens: "it survives no more failures than with one member less, and fails more often",
				Remedy:  "Have an odd number of members",
			})
		}
		if known := s.client.Endpoints(); voters > 1 && len(known) == 1 {
			found = append(found, store.Finding{
				Found:   fmt.Sprintf("the client names one endpoint, %s, of %d members", known[0], voters),
				Weakens: "an outage of that member, or a hung connection to it, is one of the store",
				Remedy:  "Name all members in the client's Endpoints",
			})
		}
	}
	var (
		wg  sync.WaitGroup
		all = make([][]store.Finding, len(endpoints))
	)
	for i, endpoint := range endpoints {
		wg.Go(func() { all[i] = s.checkMember(ctx, endpoint) })
	}
	wg.Wait()
	for _, of := range all {
		found = append(found, of...)
	}
	return found
}

func (s *Store) checkMember(ctx context.Context, endpoint string) (found []store.Finding) {
	asked, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	status, err := s.client.Status(asked, endpoint)
	if err != nil {
		return []store.Finding{{
			Found:   fmt.Sprintf("the member at %s does not reply: %v", endpoint, err),
			Weakens: "the cluster survives one failure less, or steps that are sent to this member take longer",
			Remedy:  "Repair the member, or the network between it and this process",
		}}
	}
	if status.Leader == 0 {
		found = append(found, store.Finding{
			Found: "the member at " + endpoint + " knows no leader", Weakens: "steps that are sent to it take longer, or fail",
			Remedy: "Repair the network between the members",
		})
	}
	if revokesWrongly(status.Version) {
		found = append(found, store.Finding{
			Found: fmt.Sprintf("the member at %s is of release %s", endpoint, status.Version),
			Weakens: "an overloaded leader that has lost its post may end the leases of all clients: " +
				"then two may hold a lock until the first one's next renewal",
			Remedy: "Update to 3.4.31, 3.5.13, 3.6 or later, and guard data by fences or by etcdstore.Held",
		})
	}
	quota := s.config.quota
	if status.DbSizeQuota > 0 {
		quota = status.DbSizeQuota
	}
	if status.DbSize > quota/5*4 {
		found = append(found, store.Finding{
			Found:   fmt.Sprintf("the database of the member at %s has %d MB, of %d", endpoint, status.DbSize>>20, quota>>20),
			Weakens: "beyond its quota the cluster takes no writes: no lock is granted",
			Remedy:  "Set --auto-compaction-retention, defragment, or raise --quota-backend-bytes",
		})
	}
	return found
}

// revokesWrongly reports whether a release lacks the correction of issue 15247 of etcd.
func revokesWrongly(version string) bool {
	var major, minor, patch int
	if n, _ := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); n != 3 || major != 3 {
		return false
	}
	return minor < 4 || minor == 4 && patch < 31 || minor == 5 && patch < 13
}

func (s *Store) checkAlarms(ctx context.Context) (found []store.Finding) {
	alarms, err := run(ctx, s, opVerify, func(ctx context.Context, _ bool) (*clientv3.AlarmResponse, error) {
		return s.client.AlarmList(ctx)
	})
	if err != nil {
		return nil // the user may not ask
	}
	for _, alarm := range alarms.Alarms {
		finding := store.Finding{
			Found:   fmt.Sprintf("the alarm %s is raised, by the member %x", alarm.Alarm, alarm.MemberID),
			Weakens: "a database that is damaged differs from the others'",
			Remedy:  "Replace the member",
		}
		if alarm.Alarm == etcdserverpb.AlarmType_NOSPACE {
			finding.Weakens = "the cluster takes no writes: no lock is granted, and no hold is taken up"
			finding.Remedy = "Compact, defragment each member, and disarm the alarm; then set --auto-compaction-retention"
			finding.Refused = store.Full
		}
		found = append(found, finding)
	}
	return found
}

func (s *Store) checkHistory(ctx context.Context, revision int64) []store.Finding {
	if revision <= s.config.history {
		return nil
	}
	compacted, err := run(ctx, s, opVerify, func(ctx context.Context, _ bool) (bool, error) {
		_, err := s.client.Get(ctx, s.fenceKey(), clientv3.WithRev(1), clientv3.WithKeysOnly())
		if is(err, rpctypes.ErrCompacted) {
			return true, nil // an answer, and no failure
		}
		return false, err
	})
	if err != nil || compacted {
		return nil
	}
	return []store.Finding{{
		Found:   fmt.Sprintf("the history has all %d revisions since the cluster was made", revision),
		Weakens: "the database grows with each lock, until it is full and the cluster takes no writes",
		Remedy:  "Set --auto-compaction-mode periodic and --auto-compaction-retention 1h, and defragment from time to time",
	}}
}
