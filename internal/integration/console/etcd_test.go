package console_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/core/etcdstore"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/operate"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// The console, the presence of processes, rules, and actions with their log work on an etcd alone:
// here for two processes, of which the second has no page.
func TestAnEtcdAlone(t *testing.T) {
	t.Parallel()
	ctx, server, quiet := t.Context(), etcdtest.Start(t), slog.New(slog.DiscardHandler)
	type process struct {
		store    *etcdstore.Store
		seats    *semaphore.Semaphore
		jobs     *lock.Locker
		rules    *rules.Rules
		presence *presence.Presence
	}
	start := func(name string) *process {
		client := must(clientv3.New(clientv3.Config{Endpoints: []string{server.URL()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()}))
		t.Cleanup(func() { _ = client.Close() })
		st := must(etcdstore.New(client, etcdstore.WithTimeout(10*time.Second)))
		p := &process{store: st, seats: must(semaphore.New(st, "seats", 2)), jobs: must(lock.New(st, "jobs", lock.WithHolder(name), lock.WithLogger(quiet)))}
		return p
	}
	here, there := start("here"), start("there")
	push := func(capacity int, seen int64) int64 {
		return must(rules.Push(ctx, here.store, "shop", fmt.Appendf(nil, "semaphores: {seats: {capacity: %d}}\n", capacity), seen, "ann", "a test"))
	}
	version := push(3, 0)
	for _, p := range []*process{here, there} {
		p.rules = must(rules.Open(ctx, rules.Store(p.store, "shop"), rules.For(p.seats), rules.Every(50*time.Millisecond), rules.WithLogger(quiet)))
		p.presence = must(presence.Start(p.store, presence.Service("shop"), presence.WithRules(p.rules), presence.WithLogger(quiet)))
		t.Cleanup(func() {
			_ = p.presence.Stop(ctx)
			_ = p.rules.Close()
			_ = p.store.Close()
		})
		if c := must(p.seats.Capacity("k")); c != 3 {
			t.Errorf("a capacity of %d", c)
		}
	}
	version = push(4, version)
	if _, err := rules.Push(ctx, there.store, "shop", []byte("mode: off\n"), version-1, "bob", ""); err == nil {
		t.Error("a push in the place of an old version succeeds")
	}
	testpace.Eventually(t, 10*time.Second, "the rules reach the other process", func() bool { return must(there.seats.Capacity("k")) == 4 })

	lease := must(there.jobs.Lock(ctx, "nightly"))
	c := console.New(here.store, console.AllowAnyone(), console.ShowKeys(), console.Rules(here.rules), console.WithLogger(quiet))
	t.Cleanup(func() { _ = c.Close() })
	pages := httptest.NewServer(c)
	t.Cleanup(pages.Close)
	get := func(path string) string {
		t.Helper()
		reply := must(http.Get(pages.URL + "/" + path))
		defer func() { _ = reply.Body.Close() }()
		text := string(must(io.ReadAll(reply.Body)))
		if reply.StatusCode != http.StatusOK {
			t.Errorf("GET %s: %d\n%s", path, reply.StatusCode, text)
		}
		return text
	}
	testpace.Eventually(t, 20*time.Second, "both processes are shown", func() bool {
		fleet, err := presence.Fleet(ctx, here.store)
		return err == nil && len(fleet) == 2
	})
	for path, want := range map[string]string{
		"": "", "monitor": "seats", "processes": "shop", "rules": "a test", "locks": "jobs", "permits": "seats", "locks/jobs": "nightly",
		"limits": "", "operations": "", "tasks": "", "tasks/unpaid": "The store cannot do that.",
	} {
		if text := get(path); !strings.Contains(text, want) {
			t.Errorf("GET %s lacks %q:\n%s", path, want, text)
		}
	}

	action := operate.Action{Kind: operate.ReleaseLock, Name: "jobs", Key: "nightly", Fence: lease.Fence().Number, Operator: "ann", Why: "it hangs"}
	if outcome, err := operate.Do(ctx, here.store, action); outcome != operate.Done || err != nil {
		t.Errorf("%s, %v", outcome, err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(testpace.Scale(10 * time.Second)):
		t.Error("the holder is not notified")
	}
	if text := get("log"); !strings.Contains(text, "it hangs") {
		t.Errorf("the log:\n%s", text)
	}
	action.Kind = operate.ResetLimit
	if outcome, err := operate.Do(ctx, here.store, action); outcome != operate.Failed {
		t.Errorf("a reset of a limiter on etcd: %s, %v", outcome, err)
	}
	_ = lease.Unlock(ctx)

	must(0, there.presence.Stop(ctx))
	if fleet, err := presence.Fleet(ctx, here.store); err != nil || len(fleet) != 1 {
		t.Errorf("after the other has ended: %v, %v", fleet, err)
	}
}
