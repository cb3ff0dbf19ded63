package mwtest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// silent is a store whose acquisitions time out.
type silent struct{ store.Store }

func (silent) fail() error {
	<-time.After(20 * time.Millisecond)
	return fmt.Errorf("%w: no reply in time", store.ErrUnavailable)
}

func (s silent) AcquireLease(context.Context, store.LeaseRequest) (store.LeaseReply, error) {
	return store.LeaseReply{}, s.fail()
}

// allAtOnce sends n concurrent requests for the same key, and returns how many had each status, and
// how many bypassed the store.
func allAtOnce(t *rig, h http.Handler, n int) (statuses map[int]int, bypassed int) {
	t.Helper()
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	statuses = make(map[int]int)
	for range n {
		wg.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, Path+"1", http.NoBody))
			mu.Lock()
			defer mu.Unlock()
			statuses[w.Code]++
			if w.Header().Get("Lock-Status")+w.Header().Get("Concurrency-Status") == "bypassed" {
				bypassed++
			}
		})
	}
	wg.Wait()
	return statuses, bypassed
}

const silenceSize = 4000

// silenceRow is a row about concurrent requests for a key while the store does not reply.
func silenceRow(name string, status int, build func(*rig, store.Store) Middleware) row {
	return row{name, func(t *rig) {
		var ran atomic.Int64
		h := t.framework.Serve(func(w http.ResponseWriter, _ *http.Request) {
			ran.Add(1)
			w.WriteHeader(http.StatusCreated)
		}, build(t, silent{newStore(t)}))
		got, bypassed := allAtOnce(t, h, silenceSize)
		if len(got) != 1 || got[status] != silenceSize {
			t.Errorf("statuses %v, want %d alone", got, status)
		}
		if n := int(ran.Load()); n != got[http.StatusCreated] || n != bypassed {
			t.Errorf("the handler ran %d times, %d requests passed without the store", n, bypassed)
		}
	}}
}

// silenceRows are about concurrent requests for the same key while the store does not reply: none
// of them is answered that others hold it.
var silenceRows = []row{
	silenceRow("concurrent requests for a lock while the store does not reply", http.StatusServiceUnavailable,
		func(t *rig, st store.Store) Middleware {
			return Exclusive{Locker: newLocker(t, st), By: byID}
		}),
	silenceRow("concurrent waiters for a lock while the store does not reply", http.StatusServiceUnavailable,
		func(t *rig, st store.Store) Middleware {
			return Exclusive{Locker: newLocker(t, st), By: byID, Options: []policy.ExclusiveOption{policy.Wait(5 * time.Millisecond)}}
		}),
	silenceRow("concurrent requests run unprotected while the store of a lock does not reply", http.StatusCreated,
		func(t *rig, st store.Store) Middleware {
			return Exclusive{Locker: newLocker(t, st), By: byID, Options: []policy.ExclusiveOption{policy.RunUnprotected()}}
		}),
	silenceRow("concurrent requests for a permit while the store does not reply", http.StatusServiceUnavailable,
		func(t *rig, st store.Store) Middleware {
			return Concurrency{Semaphore: newSemaphore(t, st, 1), By: byID}
		}),
	silenceRow("concurrent waiters for a permit while the store does not reply", http.StatusServiceUnavailable,
		func(t *rig, st store.Store) Middleware {
			return Concurrency{Semaphore: newSemaphore(t, st, 1), By: byID, Options: []policy.ConcurrencyOption{policy.Wait(5 * time.Millisecond)}}
		}),
	silenceRow("concurrent requests pass while the store of a semaphore does not reply", http.StatusCreated,
		func(t *rig, st store.Store) Middleware {
			return Concurrency{Semaphore: newSemaphore(t, st, 1), By: byID, Options: []policy.ConcurrencyOption{policy.FailOpen()}}
		}),
}
