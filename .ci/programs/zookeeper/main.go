// A program outside of the repository, with a lock on a ZooKeeper that is not there.
package main

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/zkstore"
)

func main() {
	st, err := zkstore.New([]string{"127.0.0.1:1"}, zkstore.WithTimeout(100*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	jobs, err := lock.New(st, "jobs")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := jobs.Lock(context.Background(), "report"); !errors.Is(err, store.ErrUnavailable) {
		log.Fatal("a lock without a store: ", err)
	}
	if err := st.Close(); err != nil {
		log.Fatal(err)
	}
}
