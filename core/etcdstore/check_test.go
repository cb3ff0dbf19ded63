package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// finds returns the finding with a text. It returns false, too, if the cluster does not reply, as in
// an election.
func finds(t *testing.T, s *Store, text string) (f store.Finding, found bool) {
	t.Helper()
	f, found, _ = check(t, s, text)
	return f, found
}

func check(t *testing.T, s *Store, text string) (store.Finding, bool, error) {
	t.Helper()
	found, err := s.Check(t.Context())
	if err != nil {
		t.Log(err)
		return store.Finding{}, false, err
	}
	for _, f := range found {
		if strings.Contains(f.Found, text) {
			if f.Weakens == "" || f.Remedy == "" {
				t.Errorf("%+v has no consequence, or no remedy", f)
			}
			return f, true, nil
		}
	}
	return store.Finding{}, false, nil
}

func wantFinding(t *testing.T, s *Store, text string, want bool) store.Finding {
	t.Helper()
	var f store.Finding
	testpace.Eventually(t, 20*time.Second, fmt.Sprintf("finding %q: %t", text, want), func() bool {
		var found bool
		var err error
		f, found, err = check(t, s, text)
		return err == nil && found == want
	})
	return f
}

func TestCheckOfMembers(t *testing.T) {
	t.Parallel()
	members := etcdtest.StartCluster(t, 3)
	one := open(t, connect(t, members[0].URL()))
	s := open(t, connect(t, members[0].URL(), members[1].URL(), members[2].URL()), WithTimeout(2*time.Second))
	wantFinding(t, one, "the client names one endpoint", true)
	wantFinding(t, s, "the client names one endpoint", false)
	wantFinding(t, s, "does not reply", false)
	wantFinding(t, s, "the cluster has", false)
	status, err := s.client.Status(t.Context(), members[0].URL())
	if err != nil {
		t.Fatal(err)
	}
	wantFinding(t, s, "is of release "+status.Version, revokesWrongly(status.Version))
	members[2].Stop()
	testpace.Eventually(t, 10*time.Second, "a member that has stopped is found", func() bool {
		_, found := finds(t, s, "the member at "+members[2].URL()+" does not reply")
		return found
	})

	pair := etcdtest.StartCluster(t, 2)
	wantFinding(t, open(t, connect(t, pair[0].URL(), pair[1].URL())), "the cluster has 2 members", true)
}

func TestCheckOfHistory(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := connect(t, server.URL())
	s := open(t, c, func(c *config) { c.history = 50 })
	acquire(t, s, newRequest("k", 0), store.Granted)
	wantFinding(t, s, "the history has all", false)
	for range 60 {
		if _, err := c.Put(t.Context(), "other", ""); err != nil {
			t.Fatal(err)
		}
	}
	wantFinding(t, s, "the history has all", true)
	if _, err := c.Compact(t.Context(), 40); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, s, "the history has all", false)
}

func TestReleasesThatRevokeWrongly(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{
		"3.4.23": true, "3.4.30": true, "3.4.31": false, "3.5.0": true, "3.5.12": true, "3.5.13": false, "3.6.0": false, "3.7.3": false, "odd": false,
	} {
		if revokesWrongly(version) != want {
			t.Errorf("%s: %v", version, !want)
		}
	}
	for version, want := range map[string]bool{"3.3.27": true, "2.3.8": true, "3.4.0": false, "3.10.1": false, "4.0.0": false, "odd": false} {
		if older(version, [2]int{3, 4}) != want {
			t.Errorf("%s: %v", version, !want)
		}
	}
}

// fill writes until the server has no room.
func fill(t *testing.T, c *clientv3.Client) {
	t.Helper()
	for i := 0; ; i++ {
		_, err := c.Put(t.Context(), fmt.Sprint("fill", i), strings.Repeat("x", 200<<10))
		if err != nil && strings.Contains(err.Error(), "space exceeded") {
			return
		}
		if err != nil || i > 1000 {
			t.Fatal(i, err)
		}
	}
}

// A server without room grants nothing new. It renews holds and releases them.
func TestFullServer(t *testing.T) {
	t.Parallel()
	const quota = 16 << 20
	server := etcdtest.Start(t, "--quota-backend-bytes", fmt.Sprint(quota))
	c := connect(t, server.URL())
	s := open(t, c, func(c *config) { c.quota = quota })
	wantFinding(t, s, "the database of the member", false)
	wantFinding(t, s, "the alarm NOSPACE is raised", false)
	var refs []store.LeaseRef
	for i := range 4 {
		req := newRequest(fmt.Sprint("k", i), 0)
		refs = append(refs, req.Ref(acquire(t, s, req, store.Granted).Fence))
	}
	if held, err := s.RenewLeases(t.Context(), refs[:3]); err != nil || !held[2] {
		t.Fatal(held, err)
	}
	fill(t, c)
	testpace.Eventually(t, 10*time.Second, "the alarm is raised", func() bool {
		f, found := finds(t, s, "the alarm NOSPACE is raised")
		return found && f.Refused == store.Full
	})
	wantFinding(t, s, "the database of the member", true)
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v", err)
	}
	for name, req := range map[string]store.LeaseRequest{"exclusive": newRequest("new", 0), "permit": newRequest("new", 1)} {
		if _, err := s.AcquireLease(t.Context(), req); !errors.Is(err, store.ErrFull) {
			t.Errorf("%s: AcquireLease: %v, want ErrFull", name, err)
		}
	}
	if held, err := s.RenewLeases(t.Context(), refs[:3]); err != nil || !held[0] || !held[1] || !held[2] {
		t.Errorf("RenewLeases of what was taken up: %v, %v", held, err)
	}
	if held, err := s.RenewLeases(t.Context(), refs[3:]); !held[0] && !errors.Is(err, store.ErrFull) { // as the server lets it
		t.Errorf("the first renewal: %v, %v", held, err)
	}
	if held, err := s.VerifyLease(t.Context(), refs[0]); err != nil || !held {
		t.Errorf("VerifyLease: %v, %v", held, err)
	}
	if state, err := s.InspectLease(t.Context(), refs[0].Name, refs[0].Key); err != nil || state.InUse == 0 {
		t.Errorf("InspectLease: %+v, %v", state, err)
	}
	outcomes, err := s.ReleaseLeases(context.Background(), refs)
	for i := range refs {
		if err != nil || outcomes[i] != store.Released {
			t.Errorf("ReleaseLeases: %v, %v", outcomes, err)
		}
	}
}

// A server whose database is larger than its quota refuses all transactions, also those that only read or
// delete.
func TestServerWithoutTransactions(t *testing.T) {
	t.Parallel()
	p := newProxy(t, etcdtest.Shared(t).Addr())
	s := open(t, connect(t, p.address), WithPrefix(newPrefix()))
	var refs []store.LeaseRef
	for i := range 3 {
		req := newRequest(fmt.Sprint("k", i), 0)
		refs = append(refs, req.Ref(acquire(t, s, req, store.Granted).Fence))
	}
	if held, err := s.RenewLeases(t.Context(), refs); err != nil || !held[2] {
		t.Fatal(held, err)
	}
	p.refuse("Txn", rpctypes.ErrGRPCNoSpace)
	if _, err := s.AcquireLease(t.Context(), newRequest("new", 0)); !errors.Is(err, store.ErrFull) {
		t.Errorf("AcquireLease: %v, want ErrFull", err)
	}
	if held, err := s.RenewLeases(t.Context(), refs); err != nil || !held[0] || !held[1] || !held[2] {
		t.Errorf("RenewLeases: %v, %v", held, err)
	}
	if ended, err := s.RevokeLease(t.Context(), refs[2].Name, refs[2].Key, refs[2].Fence); err != nil || !ended {
		t.Errorf("RevokeLease: %v, %v", ended, err)
	}
	outcomes, err := s.ReleaseLeases(t.Context(), refs[:2])
	if err != nil || outcomes[0] != store.Released || outcomes[1] != store.Released {
		t.Errorf("ReleaseLeases: %v, %v", outcomes, err)
	}
}
