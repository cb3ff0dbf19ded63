package redsync_test

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/migrate/redsync"
)

func Example() {
	store := memstore.New() // or redisstore.New(client), for several processes
	defer store.Close()
	locker, err := lock.New(store, "jobs", lock.WithTTL(8*time.Second))
	if err != nil {
		panic(err)
	}
	defer func() { _ = locker.Close() }()
	rs := redsync.New(locker)

	mutex := rs.NewMutex("report")
	if err := mutex.Lock(); err != nil {
		panic(err)
	}
	err = rs.NewMutex("report", redsync.WithTries(1)).Lock()
	fmt.Println("another:", err)
	ok, err := mutex.Unlock()
	fmt.Println("unlocked:", ok, err)
	// Output:
	// another: redsync: lock already taken
	// unlocked: true <nil>
}
