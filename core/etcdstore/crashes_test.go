package etcdstore

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestStoresOfDeadProcesses(t *testing.T) {
	t.Parallel()
	server := etcdtest.Shared(t)
	e := storetest.ExceptionsOf("etcd")
	storetest.CrashesOf(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		prefix := WithPrefix(newPrefix())
		test(t, storetest.Harness[*Store]{
			Store: open(t, connect(t, server.URL()), prefix), Advance: time.Sleep, Except: e.Crashes, Grace: testpace.Scale(e.Grace),
			Another: func() (*Store, func()) {
				proxy := faultproxy.New(t, bytes{}, server.Addr())
				return open(t, connect(t, proxy.Addr()), prefix, WithTimeout(time.Second)), func() { // Close waits for it
					proxy.BlackHole()
					proxy.CutAll()
				}
			},
		})
	})
}
