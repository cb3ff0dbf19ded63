package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func report() call { return call{method: http.MethodGet, path: "/api/report", user: "alice"} }

func rush(n int) call {
	return call{method: http.MethodPost, path: "/api/report/rush", user: "alice", body: `{"quantity":` + strconv.Itoa(n) + `}`}
}

// places is an instance's answer about the places for reports.
type places struct {
	Places, Taken, Waiting, Served int
	MayWait                        int `json:"may_wait"`
	TurnedAway                     int `json:"turned_away"`
}

func (i *instance) places() places {
	i.t.Helper()
	var p places
	a := i.do(call{method: http.MethodGet, path: "/api/report/places", user: "alice"}).want(i.t, http.StatusOK, false)
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Places != 2 || p.MayWait != 4 {
		i.t.Fatalf("the places are %s", a.body)
	}
	if p.Taken > 2 || p.Waiting > 4 {
		i.t.Errorf("%d of 2 places are taken, and %d of 4 requests wait", p.Taken, p.Waiting)
	}
	return p
}

// wantEmpty waits until no place is taken: a release is sent to the store after the answer.
func (i *instance) wantEmpty() {
	i.t.Helper()
	eventually(i.t, 5*time.Second, "the places are free", func() bool {
		p := i.places()
		return p.Taken == 0 && p.Waiting == 0
	})
}

// crowd sends 12 requests for a report at once, to each instance in turn. Two are served at a time,
// four wait, and the others are refused.
func crowd(t *testing.T, instances ...*instance) {
	t.Helper()
	const requests = 12
	before := make([]places, len(instances))
	for n, i := range instances {
		i.wantEmpty()
		before[n] = i.places()
	}
	answers, took := make([]answer, requests), make([]time.Duration, requests)
	began := time.Now()
	var wg sync.WaitGroup
	for n := range requests {
		wg.Go(func() {
			var err error
			if answers[n], err = instances[n%len(instances)].try(report()); err != nil {
				t.Error(err)
			}
			took[n] = time.Since(began)
		})
	}
	wg.Wait()
	all := time.Since(began)
	if all < 900*time.Millisecond {
		t.Errorf("three rounds of reports took %v", all)
	}
	served, away := 0, 0
	for n, a := range answers {
		switch a.status {
		case http.StatusOK:
			served++
			if !strings.HasPrefix(a.body, `{"charges":`) || took[n] < 300*time.Millisecond {
				t.Errorf("after %v: %s", took[n], a.body)
			}
		default:
			away++
			a.wantProblem(t, http.StatusTooManyRequests, "too-many-at-once")
			if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after < 1 {
				t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
			}
		}
	}
	// Each instance bounds its own waiters, and knows of those of others no more than their places in
	// the queue.
	fewer := served < 6 && all < 1200*time.Millisecond // later ones have waited for the most, a second
	if fewer || served > 4+2*len(instances) || served+away != requests {
		t.Errorf("%d were served, and %d turned away, in %v", served, away, all)
	}
	for n, i := range instances {
		i.wantEmpty()
		p := i.places()
		served -= p.Served - before[n].Served
		away -= p.TurnedAway - before[n].TurnedAway
	}
	if served != 0 || away != 0 {
		t.Errorf("%d served and %d turned away that were not counted", served, away)
	}
}

func TestReportsOnOneInstance(t *testing.T) {
	i := start(t, "-rate", "1", "-burst", "1") // which do not count here
	for range 3 {
		crowd(t, i)
	}
	if s := i.stats(); s.Denied != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestReportsOnTwoInstances(t *testing.T) {
	args := []string{"-redis", redistest.Start(t).URL()}
	a, b := start(t, args...), start(t, args...)
	for range 3 {
		crowd(t, a, b)
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.do(purchase("k")).want(t, http.StatusCreated, false)
	if a := i.do(report()).want(t, http.StatusOK, false); a.body != `{"charges":1}` || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("the report is %s %v", a.body, a.header)
	}
	anonymous := report()
	anonymous.user = ""
	i.do(anonymous).wantProblem(t, http.StatusUnauthorized, "")
	for _, c := range []call{
		{method: http.MethodPost, path: "/api/report", user: "alice"}, {method: http.MethodGet, path: "/api/report/rush", user: "alice"},
	} {
		i.do(c).wantProblem(t, http.StatusNotFound, "")
	}
	if p := i.places(); p.Served != 1 || p.TurnedAway != 0 {
		t.Errorf("places %+v", p)
	}
}

// A client that disconnects makes room, whether it waits or is served, since its report ends then.
func TestDisconnectedClientsMakeRoom(t *testing.T) {
	i := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.url+"/api/report", nil)
			if err != nil {
				t.Error(err)
				return
			}
			req.Header.Set("X-User", "alice")
			if resp, err := i.client.Do(req); err == nil {
				_ = resp.Body.Close()
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	eventually(t, 5*time.Second, "all places are taken", func() bool {
		p := i.places()
		return p.Taken == 2 && p.Waiting == 4
	})
	cancel()
	wg.Wait()
	i.wantEmpty()
	if p := i.places(); p.TurnedAway != 0 {
		t.Errorf("places %+v", p)
	}
	crowd(t, i)
}

func TestRush(t *testing.T) {
	i := start(t)
	for range 2 {
		i.wantEmpty()
		a := i.do(rush(12)).want(t, http.StatusOK, false)
		if a.header.Get("Content-Type") != "application/x-ndjson" {
			t.Errorf("header %v", a.header)
		}
		statuses, numbers := map[int]int{}, map[int]bool{}
		for line := range strings.Lines(a.body) {
			var outcome struct{ Number, Status int }
			if err := json.Unmarshal([]byte(line), &outcome); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			statuses[outcome.Status]++
			numbers[outcome.Number] = true
		}
		if len(numbers) != 12 || statuses[http.StatusOK] != 6 || statuses[http.StatusTooManyRequests] != 6 {
			t.Errorf("of %d requests: %v", len(numbers), statuses)
		}
	}
	for _, n := range []int{-1, 0, 21} {
		i.do(rush(n)).wantProblem(t, http.StatusBadRequest, "")
	}
	anonymous := rush(1)
	anonymous.user = ""
	i.do(anonymous).wantProblem(t, http.StatusUnauthorized, "")
}

// A client with many requests at once is limited by its address.
func TestRushIsLimited(t *testing.T) {
	i := start(t, "-rate", "1", "-burst", "1")
	i.do(rush(1)).want(t, http.StatusOK, false)
	i.do(rush(1)).wantProblem(t, http.StatusTooManyRequests, "quota-exceeded")
	if p := i.places(); p.Served != 1 || p.TurnedAway != 0 {
		t.Errorf("places %+v", p)
	}
}

// The places of an instance that dies during its reports are free after its lease.
func TestKilledDuringReports(t *testing.T) {
	const lease = time.Second
	server := redistest.Start(t)
	args := []string{"-redis", server.URL(), "-lease", lease.String()}
	dying, other := start(t, args...), start(t, args...)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { _, _ = dying.try(report()) })
	}
	eventually(t, 5*time.Second, "reports are being made", func() bool { return other.places().Taken == 2 })
	dying.kill()
	wg.Wait()
	began := time.Now()
	eventually(t, lease+3*time.Second, "there is room again", func() bool { return other.do(report()).status == http.StatusOK })
	if took := time.Since(began); took > lease+3*time.Second {
		t.Errorf("it took %v to get the place of a dead instance", took)
	}
	other.wantEmpty()
	crowd(t, other)
}

func TestReportsWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	i := start(t, "-redis", server.URL())
	i.do(report()).want(t, http.StatusOK, false)
	server.Stop()
	i.do(report()).wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity")
	i.do(call{method: http.MethodGet, path: "/api/report/places", user: "alice"}).wantProblem(t, http.StatusServiceUnavailable, "")
	server.Restart()
	eventually(t, 5*time.Second, "it makes reports again", func() bool { return i.do(report()).status == http.StatusOK })
	i.wantEmpty()
}
