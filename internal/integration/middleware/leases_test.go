package middleware_test

import (
	"crypto/rand"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/zkstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// aBusyMachine is a timeout of stores: a busy machine is no outage.
const aBusyMachine = 10 * time.Second

// The rows about locks and permits hold on etcd. Each row has a prefix of its own.
func TestTableOnEtcd(t *testing.T) {
	server := etcdtest.Start(t)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{server.URL()}, DialTimeout: aBusyMachine, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	mwtest.RunLeases(t, onServeMux, func(t *testing.T) func() mwtest.Leases {
		prefix := etcdstore.WithPrefix(rand.Text())
		return func() mwtest.Leases {
			s, err := etcdstore.New(client, prefix, etcdstore.WithTimeout(aBusyMachine))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
	}, true)
}

// They hold on ZooKeeper, except those about reserves, which it does not have. Each row has a node of its own.
func TestTableOnZooKeeper(t *testing.T) {
	server := zktest.Start(t)
	mwtest.RunLeases(t, onServeMux, func(t *testing.T) func() mwtest.Leases {
		chroot := zkstore.WithChroot(zktest.NewChroot())
		return func() mwtest.Leases {
			s, err := zkstore.New([]string{server.Addr()}, chroot, zkstore.WithTimeout(aBusyMachine))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
	}, false)
}
