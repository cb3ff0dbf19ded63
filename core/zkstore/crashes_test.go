package zkstore

import (
	"reflect"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// endSession ends a store's session at a server, as its expiry would, and its connection.
func endSession(t testing.TB, s *Store, server string) {
	t.Helper()
	current := s.link.session()
	if current == nil {
		t.Fatal("the store has no session")
	}
	password := reflect.ValueOf(s.conn).Elem().FieldByName("passwd").Bytes()
	s.link.severed.Store(true) // so that the client does not resume it in between
	defer s.link.severed.Store(false)
	_ = s.link.present().Close()
	testpace.Eventually(t, patience, "the connection ends", func() bool { return s.link.silence() > 0 })
	again, err := zktest.Resume(server, current.id, password)
	if err == nil {
		err = again.End()
	}
	if err != nil {
		t.Error(err)
	}
}

// What a dead process leaves behind ends with its session. Here that is as long as the TTLs of the
// suite need it to be, so its end is brought about when the shortest session would have ended that
// allows for the leases of those that die.
func TestStoresOfDeadProcesses(t *testing.T) {
	t.Parallel()
	server := zktest.Shared(t).Addr()
	crashed := testpace.Scale(2*time.Second) * 5 / 4
	exceptions := storetest.ExceptionsOf("zookeeper")
	storetest.CrashesOf(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		chroot := WithChroot(zktest.NewChroot())
		test(t, storetest.Harness[*Store]{
			Store: open(t, []string{server}, chroot, WithSession(suiteSession)), Advance: time.Sleep,
			Except: exceptions.Crashes, Grace: exceptions.Grace,
			Another: func() (*Store, func()) {
				proxy := zktest.NewProxy(t, server)
				s := open(t, []string{proxy.Addr()}, chroot, WithSession(suiteSession), WithTimeout(time.Second))
				return s, func() {
					proxy.BlackHole()
					proxy.CutAll()
					ended := make(chan struct{})
					timer := time.AfterFunc(crashed, func() { endSession(t, s, server); close(ended) })
					t.Cleanup(func() {
						if !timer.Stop() {
							<-ended
						}
					})
				}
			},
		})
	})
}
