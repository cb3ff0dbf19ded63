package pgstore

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/delaytest"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
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
	delaytest.Storm(t, 2_000, openTestStore(t, server.DSN(), quiet), open, func() {}, server.Restart, func() {})
}

func TestTasksAreThoseInMemory(t *testing.T) {
	t.Parallel()
	delaytest.Model(t, newTestStore(t))
}
