package zkstore_test

import (
	"context"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/zkstore"
)

// A store with a session of 10 s: a dead process keeps others waiting for as long.
func Example() {
	ctx := context.Background()
	st, err := zkstore.New(
		[]string{"zk1:2181", "zk2:2181", "zk3:2181"},
		zkstore.WithChroot("/apps/shop"),
		zkstore.WithAuth("digest", []byte("shop:password")),
		zkstore.WithSession(10*time.Second),
	)
	if err != nil {
		panic(err)
	}
	defer func() { _ = st.Close() }()
	locks, err := lock.New(st, "orders", lock.WithTTL(8*time.Second))
	if err != nil {
		panic(err)
	}
	err = locks.Do(ctx, "42", func(context.Context) error {
		return nil // the work, which ends with this context
	})
	if err != nil {
		panic(err)
	}
}

// A write that is refused once the lock is lost, even if the process was paused in between.
func ExampleHeld() {
	write := func(st *zkstore.Store, lease *lock.Lease, path string, data []byte) error {
		check, err := zkstore.Held(lease)
		if err != nil {
			return err
		}
		_, err = st.Conn().Multi(check, &zk.SetDataRequest{Path: path, Data: data, Version: -1})
		return err // zk.ErrNoNode if the lock is lost, or the node is not there
	}
	_ = write
}
