// A program outside of the repository, with a lock on an etcd that is not there.
package main

import (
	"context"
	"errors"
	"log"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func main() {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	if err != nil {
		log.Fatal(err)
	}
	st, err := etcdstore.New(client, etcdstore.WithPrefix("shop"), etcdstore.WithTimeout(200*time.Millisecond))
	if err != nil {
		log.Fatal(err)
	}
	jobs, err := lock.New(st, "jobs")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := jobs.Lock(context.Background(), "nightly"); !errors.Is(err, store.ErrUnavailable) {
		log.Fatal("a lock without a store: ", err)
	}
	if _, err := etcdstore.Held(nil); err == nil {
		log.Fatal("a comparison without a lease")
	}
}
