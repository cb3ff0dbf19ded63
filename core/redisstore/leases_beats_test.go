package redisstore_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The heartbeats of four processes that wait for many keys cost the server little.
func TestHeartbeatsOfManyKeys(t *testing.T) {
	const keys, processes = 3_000, 4
	server := redistest.Start(t)
	direct := server.Client()
	// The control is the call of a script that sets one field, as a heartbeat of a key does: CPU time
	// depends on the machine, and on what else it does.
	cpu := func() (seconds float64) {
		info := direct.Info(ctx(), "cpu").Val()
		return number(t, info, "used_cpu_sys:") + number(t, info, "used_cpu_user:")
	}
	const calls = 5000
	control := cpu()
	for range calls {
		must(t, direct.Eval(ctx(), "return redis.call('HSET', KEYS[1], 'field', 1)", []string{"control"}).Err())
	}
	control = (cpu() - control) / calls
	var stores []*redisstore.Store
	for range processes + 1 {
		stores = append(stores, newStore(t, server.Client()))
	}
	each := func(do func(key string)) {
		var wg sync.WaitGroup
		for part := range 16 {
			wg.Go(func() {
				for i := part; i < keys; i += 16 {
					do(fmt.Sprint("k", i))
				}
			})
		}
		wg.Wait()
	}
	request := func(key string) store.LeaseRequest {
		req := lockRequest(key)
		req.TTL = testpace.Scale(time.Minute) // so that none expires before all queue
		return req
	}
	each(func(key string) { acquired(t, stores[processes], request(key)) })
	for _, s := range stores[:processes] {
		each(func(key string) { queues(t, s, request(key)) })
	}
	beats := func() float64 { return number(t, direct.Info(ctx(), "commandstats").Val(), "cmdstat_hset:calls=") }
	<-time.After(6 * time.Second) // the first heartbeats are of all keys
	const enough = keys / 4       // that the rest of the CPU time is little beside theirs
	const most = 2                // a busy machine has cold caches for the few heartbeats of a second
	var ratios []float64
	for range 5 {
		used, sent, began := cpu(), beats(), time.Now()
		for beats()-sent < enough && time.Since(began) < time.Minute {
			<-time.After(time.Second)
		}
		used, sent = cpu()-used, beats()-sent
		if sent < enough {
			t.Fatalf("only %.0f heartbeats in a minute", sent)
		}
		ratio := used / sent / control
		t.Logf("%.0f heartbeats took %.2f s: each %.2f times a call of such a script", sent, used, ratio)
		if ratio <= most {
			return
		}
		ratios = append(ratios, ratio)
	}
	t.Errorf("a heartbeat takes %.2f times a call of such a script", ratios)
}

// number returns the number that follows a name in the server's INFO.
func number(t *testing.T, info, name string) float64 {
	t.Helper()
	_, text, _ := strings.Cut(info, name)
	end := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	n, err := strconv.ParseFloat(text[:max(end, 0)], 64)
	must(t, err)
	return n
}
