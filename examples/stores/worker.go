package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// lease is the lease of the lock: for as long a process that was killed keeps others waiting. On etcd it
// does for 5 s and up to 1.5 s more, the lease of holds that have just begun, and on ZooKeeper for its session.
const lease = 2 * time.Second

// working is how long a holder works between reading and writing.
const working = 2 * time.Millisecond

// variable has the job of a worker process, as JSON.
const variable = "LOCKKEEPER_STORES_WORKER"

// job is what a worker process does.
type job struct {
	Kind, Addr string // of the store
	Counter    string // a URL
	Name       string
}

// workerMain does the job of this process, and exits, if it is a worker.
func workerMain() {
	text := os.Getenv(variable)
	if text == "" {
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		err = j.do(context.Background())
	}
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "stores: %s: %v\n", j.Name, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (j job) do(ctx context.Context) error {
	st, end, err := openStore(j.Kind, j.Addr)
	if err != nil {
		return err
	}
	defer end()
	locks, err := lock.New(st, "counters", lock.WithTTL(lease))
	if err != nil {
		return err
	}
	return increment(ctx, locks, j.Name, remote(j.Counter))
}

// increment increments the counter until that has its target. It is the same on every store.
func increment(ctx context.Context, locks *lock.Locker, worker string, c shared) error {
	for {
		held, err := locks.Lock(ctx, "counter")
		if errors.Is(err, store.ErrUnavailable) { // a busy machine: try again
			<-time.After(100 * time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		value, err := c.read(worker, held.Fence())
		if err == nil {
			<-time.After(working)
			// Without a look at held.Context(), as by a process that was paused after it had looked.
			err = c.write(worker, held.Fence(), value+1)
		}
		if errors.Is(err, errKilled) {
			return nil // and leaves the lock
		}
		_ = held.Unlock(ctx) // or it is lost
		switch {
		case errors.Is(err, errDone):
			return nil
		case err != nil && !errors.Is(err, fence.ErrStale):
			return err
		}
	}
}

// remote is the counter of another process, by its URL.
type remote string

func (r remote) read(worker string, t fence.Token) (int, error) {
	text, err := r.send(http.MethodGet, worker, t, "")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(text)
}

func (r remote) write(worker string, t fence.Token, value int) error {
	_, err := r.send(http.MethodPut, worker, t, strconv.Itoa(value))
	return err
}

func (r remote) send(method, worker string, t fence.Token, body string) (string, error) {
	request, err := http.NewRequest(method, string(r)+"?worker="+url.QueryEscape(worker), strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set(fence.Header, t.String())
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	switch {
	case err != nil:
		return "", err
	case reply.StatusCode == http.StatusGone:
		return "", errDone
	case reply.StatusCode == http.StatusPreconditionFailed:
		return "", fence.ErrStale
	case reply.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%s: %s", reply.Status, text)
	}
	return string(text), nil
}

// ServeHTTP lets other processes read and write the counter.
func (c *counter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	worker := r.URL.Query().Get("worker")
	text, err := io.ReadAll(r.Body)
	var t fence.Token
	if err == nil {
		t, err = fence.ParseToken(r.Header.Get(fence.Header))
	}
	var value int
	switch {
	case err != nil:
	case r.Method == http.MethodGet:
		value, err = c.read(worker, t)
	default:
		if value, err = strconv.Atoi(string(text)); err == nil {
			err = c.write(worker, t, value)
		}
	}
	switch {
	case err == nil:
		_, _ = io.WriteString(w, strconv.Itoa(value))
	case errors.Is(err, errDone):
		w.WriteHeader(http.StatusGone)
	case errors.Is(err, fence.ErrStale):
		w.WriteHeader(http.StatusPreconditionFailed)
	default:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
