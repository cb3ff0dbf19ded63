// A program outside of the repository, with a guard on a PostgreSQL that is not there.
package main

import (
	"context"
	"errors"
	"log"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func main() {
	for _, table := range []string{"leases", "buckets", "operations", "latches"} {
		if !strings.Contains(pgstore.Schema(), "lk."+table) {
			log.Fatal("the schema has no ", table)
		}
	}
	st, err := pgstore.New("postgres://lockkeeper@127.0.0.1:1/shop")
	if err != nil {
		log.Fatal(err)
	}
	orders, err := guard.New(st, "orders")
	if err != nil {
		log.Fatal(err)
	}
	_, _, err = guard.Do(context.Background(), orders, guard.Operation{Key: "1"}, func(context.Context) (int, error) { return 1, nil })
	if !errors.Is(err, store.ErrUnavailable) {
		log.Fatal("an operation without a store: ", err)
	}
}
