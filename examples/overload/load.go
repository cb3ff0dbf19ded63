package main

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// load has clients that send requests at a steady rate, whatever becomes of them.
type load struct {
	scene
	url    string
	client *http.Client

	mu    sync.Mutex
	since time.Time
	now   row // since then
}

// row is what became of the requests that ended in a second, or in several.
type row struct {
	High     int `json:"high"` // answered in time
	Low      int `json:"low"`  // of low priority, answered in time
	Refused  int `json:"refused"`
	Late     int `json:"late"` // their clients have left
	Failed   int `json:"failed"`
	P99      int `json:"p99"`      // ms until an answer, or until the client left; without refused ones
	Capacity int `json:"capacity"` // at the end; 0 if there is no gate

	took  time.Duration
	times []time.Duration
}

func newLoad(s scene, url string) *load {
	var dialer net.Dialer
	return &load{scene: s, url: url, since: time.Now(), client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 1000,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if tcp, ok := c.(*net.TCPConn); ok {
				err = tcp.SetLinger(0) // or else ports of connections that were left stay in use for a minute
			}
			return c, err
		},
	}}}
}

// run sends requests until ctx ends, and waits for those in flight.
func (l *load) run(ctx context.Context) {
	const tick = 5 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var requests sync.WaitGroup
	defer l.client.CloseIdleConnections()
	defer requests.Wait()
	began := time.Now()
	for sent := 0.0; ; {
		for due := time.Since(began).Seconds() * l.possible() * l.load; sent < due; sent++ {
			requests.Go(l.request)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// request sends a request, and counts what becomes of it. Its client leaves when its patience ends.
func (l *load) request() {
	high, path := rand.N(2) == 0, searchPath //nolint:gosec // no secret
	if high {
		path = ordersPath
	}
	ctx, leave := context.WithTimeout(context.Background(), l.patience)
	defer leave()
	began := time.Now()
	status := 0
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.url+path, http.NoBody)
	if err == nil {
		var answer *http.Response
		if answer, err = l.client.Do(r); err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			status = answer.StatusCode
		}
	}
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		l.now.Late++
	case err == nil && status == http.StatusServiceUnavailable:
		l.now.Refused++
		return
	case err != nil || status != http.StatusOK:
		l.now.Failed++
		return
	case high:
		l.now.High++
	default:
		l.now.Low++
	}
	l.now.times = append(l.now.times, min(took, l.patience))
}

// take returns the requests that have ended since the last call.
func (l *load) take() row {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.now
	l.now = row{}
	r.took, l.since = time.Since(l.since), time.Now()
	r.P99 = p99(r.times)
	return r
}

func p99(times []time.Duration) int {
	if len(times) == 0 {
		return 0
	}
	slices.Sort(times)
	return int(times[len(times)*99/100].Milliseconds())
}

// perSecond returns rows as one, with what became of requests in a second on average.
func perSecond(rows []row) row {
	var sum row
	for _, r := range rows {
		sum.High += r.High
		sum.Low += r.Low
		sum.Refused += r.Refused
		sum.Late += r.Late
		sum.Failed += r.Failed
		sum.Capacity = r.Capacity
		sum.took += r.took
		sum.times = append(sum.times, r.times...)
	}
	for _, n := range []*int{&sum.High, &sum.Low, &sum.Refused, &sum.Late, &sum.Failed} {
		*n = int(float64(*n)/sum.took.Seconds() + .5)
	}
	sum.P99 = p99(sum.times)
	return sum
}
