package etcdstore_test

import (
	"context"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

// The lines of docs/etcd.md. They would call servers of these names.
func Example() {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"https://etcd1:2379", "https://etcd2:2379", "https://etcd3:2379"}, // all members
		Username:  "lockkeeper", Password: "secret",
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = client.Close() }()
	st, err := etcdstore.New(client)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = st.Close() }()
}

// A write that only the holder of a lock can make, also if it was paused.
func ExampleHeld() {
	write := func(ctx context.Context, client *clientv3.Client, accounts *lock.Locker) error {
		return accounts.Do(ctx, "42", func(ctx context.Context) error {
			lease, _ := lock.FromContext(ctx)
			held, err := etcdstore.Held(lease)
			if err != nil {
				return err
			}
			reply, err := client.Txn(ctx).If(held).Then(clientv3.OpPut("accounts/42", "7")).Commit()
			if err == nil && !reply.Succeeded {
				err = lock.ErrLost
			}
			return err
		})
	}
	_ = write
}
