package pgstore

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/delaytest"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestTasksInAStorm(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	migrateIn(t, server.DSN())
	quiet := new(logbook).option()
	open := func() (store.Store, *faultproxy.Proxy) {
		proxy := postgrestest.NewProxy(t, server.Addr())
		return openTestStore(t, postgrestest.Through(server.DSN(), proxy.Addr()), WithTimeout(brisk), quiet), proxy
	}
	tasks := 2_000
	if testpace.Raced {
		tasks /= 2
	}
	delaytest.Storm(t, tasks, openTestStore(t, server.DSN(), quiet), open, func() {}, server.Restart, func() {})
}

func TestTasksAreThoseInMemory(t *testing.T) {
	t.Parallel()
	delaytest.Model(t, newTestStore(t))
}
