package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/operate"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// because are the flags of an action without a question.
var because = []string{"-why", "ticket 7", "-as", "ada", "-yes"}

// Each action is done if its object is as the operator has seen it, and otherwise changes nothing and
// shows the object. The log has all of them.
func TestActing(t *testing.T) {
	t.Parallel()
	for name, on := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, on, holder)
			for _, test := range []func(*testing.T, *shop){actOnLock, actOnPermits, actOnLimits, actOnOperations,
				actOnTasks} {
				test(t, s)
			}
			log := s.want(0, []string{"log"}).out
			if n := strings.Count(log, " ada "); n != 16 {
				t.Errorf("%d actions in the log:\n%s", n, log)
			}
			for _, text := range []string{"release_lock", "release_permits", "reset_limit", "hold_limit",
				"resolve_operation", "cancel_task", "revive_task"} {
				if !strings.Contains(log, text) || !strings.Contains(log, "ticket 7") {
					t.Errorf("no %s in the log:\n%s", text, log)
				}
			}
			for _, key := range []string{"article/1", "room", "ada@shop", "order/1"} {
				if strings.Contains(log, key) {
					t.Errorf("the log has the key %s", key)
				}
			}
		})
	}
}

// act runs an action, and checks its exit code and what it prints, also as JSON if it changes nothing.
func (s *shop) act(code int, args []string, texts ...string) {
	s.t.Helper()
	s.want(code, append(args, because...), texts...)
}

func actOnLock(t *testing.T, s *shop) {
	lease, err := s.locker.Lock(t.Context(), "article/1")
	must(t, err)
	fence := fmt.Sprint(lease.Fence().Number)
	s.act(1, []string{"locks", "release", "stock", "article/1", "-fence", "7"}, "nothing was done", fence)
	s.act(1, []string{"locks", "release", "stock", "article/1", "-fence", "7", "-json"}, `"outcome": "changed"`,
		`"fence": "`+fence+`"`)
	if err := lease.Context().Err(); err != nil {
		t.Fatal(err)
	}
	s.act(0, []string{"locks", "release", "stock", "id:" + operate.KeyID("article/1"), "-fence", fence}, "Done",
		"release lock stock")
	<-lease.Context().Done()
	if err := context.Cause(lease.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("released: %v", err)
	}
	s.act(1, []string{"locks", "release", "stock", "id:" + operate.KeyID("article/1"), "-fence", fence}, "It is gone.")
	o := s.operator
	o.stdin = "article/1\n"
	o.want(1, append([]string{"locks", "release", "stock", "-", "-fence", fence}, because...), "It is gone.")
	o.stdin = strings.Repeat("x", maxKey+1)
	o.want(2, []string{"locks", "show", "stock", "-"}, "is longer than 65536 bytes")
	o.stdin = "\n"
	o.want(2, []string{"locks", "show", "stock", "-"}, "has no key")
}

func actOnPermits(t *testing.T, s *shop) {
	permit, err := s.permits.Acquire(t.Context(), "room")
	must(t, err)
	s.act(1, []string{"permits", "release", "seats", "room", "-fence", "7"}, "nothing was done")
	s.act(0, []string{"permits", "release", "seats", "room", "-fence", fmt.Sprint(permit.Fence().Number), "-json"},
		`"outcome": "done"`)
	<-permit.Context().Done()
}

func actOnLimits(t *testing.T, s *shop) {
	for range 3 {
		_, err := s.limiter.Allow(t.Context(), "ada@shop")
		must(t, err)
	}
	s.want(0, []string{"limits", "show", "api", "ada@shop"}, "is denied for")
	s.act(0, []string{"limits", "reset", "api", "ada@shop"}, "Done")
	s.want(0, []string{"limits", "show", "api", "ada@shop"}, "would be allowed now")
	s.act(0, []string{"limits", "hold", "api", "ada@shop", "-for", "1h"}, "Done", "for 1h0m0s")
	s.want(0, []string{"limits", "show", "api", "ada@shop"}, "and held for")
	s.act(2, []string{"limits", "reset", "nothing", "key"}, `no process that is alive has a limiter "nothing"`)
	s.act(2, []string{"limits", "reset", "api", strings.Repeat("x", 2000)}, "1,024 bytes")
}

func actOnOperations(t *testing.T, s *shop) {
	for outcome, want := range map[string]error{"never-happened": nil, "answer-lost": guard.ErrNotRetained} {
		id := s.unknown(outcome)
		r, err := s.orders.InspectID(t.Context(), id)
		must(t, err)
		resolve := []string{"operations", "resolve", "orders", id, "-outcome", outcome, "-status", "201", "-version"}
		if want == nil {
			s.act(1, append(resolve, "another"), "nothing was done", r.Version())
		}
		s.act(0, append(resolve, r.Version()), "Done")
		a, _, err := s.orders.Begin(t.Context(), guard.Operation{Scope: "customer", Key: outcome})
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", outcome, err, want)
		}
		if a != nil {
			must(t, a.Abandon(t.Context()))
		}
		if want != nil {
			s.act(1, append(resolve, r.Version()), "not retained")
		}
	}
	none := strings.Repeat("A", 22)
	s.act(2, []string{"operations", "resolve", "orders", "x", "-outcome", "answer-lost", "-version", "v"}, "not the ID")
	s.want(1, []string{"operations", "show", "orders", none}, "no record")
}

func actOnTasks(t *testing.T, s *shop) {
	waits, dead := s.put("order/1"), s.bury("order/2", "no such order")
	s.act(1, []string{"tasks", "cancel", "timers", "order/1", "-task", dead}, "nothing was done", waits)
	s.act(0, []string{"tasks", "revive", "timers", "id:" + operate.KeyID("order/2"), "-task", dead}, "Done")
	s.act(0, []string{"tasks", "cancel", "timers", "order/1", "-task", waits}, "Done")
	s.want(0, []string{"tasks", "ls", "timers"}, "1 waiting, 0 running, 0 buried")
}

// A Cluster and a server behind Sentinel are stores like others.
func TestOtherRedis(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts a Cluster and a Sentinel")
	}
	addrs := redistest.StartCluster(t).Addrs()
	for _, url := range []string{
		"redis+cluster://" + addrs[0] + "?addr=" + addrs[1],
		"redis+sentinel://" + redistest.StartSentinel(t).SentinelAddr() + "/0?master_name=lockkeeper",
	} {
		o := operator{t: t, store: url, patient: true}
		o.want(0, []string{"locks", "ls", "stock"}, "Nothing is in use.")
		o.want(1, append([]string{"locks", "release", "stock", "key", "-fence", "7"}, because...), "It is gone.")
		o.want(0, []string{"log"}, "release_lock", "ticket 7")
	}
}
