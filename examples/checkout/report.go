package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

const (
	// reportTime is how long a report takes. It is costly, so no more than a few are made at a time.
	reportTime     = 300 * time.Millisecond
	reportsAtOnce  = 2
	reportsWaiting = 4
	reportWait     = time.Second
	reportKey      = "daily"
	// maxRush is how many reports one request may have asked for at once.
	maxRush = 20
)

// reports makes them, and counts what became of the requests for them on this instance.
type reports struct {
	places     *semaphore.Semaphore
	provider   *provider
	client     *http.Client
	served     atomic.Int64
	turnedAway atomic.Int64
}

func newReports(places *semaphore.Semaphore, p *provider) *reports {
	// A connection for each request, as if each came from somewhere else.
	return &reports{places: places, provider: p, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// oneKey is the key of every report: all of them share the places.
func oneKey(*gin.Context) (string, error) { return reportKey, nil }

// count is middleware. It stands outside of the one that turns requests away.
func (r *reports) count(c *gin.Context) {
	c.Next()
	switch {
	case c.Request.Context().Err() != nil: // it has left
	case c.Writer.Status() == http.StatusOK:
		r.served.Add(1)
	case c.Writer.Status() == http.StatusTooManyRequests:
		r.turnedAway.Add(1)
	}
}

// report makes a report.
func (r *reports) report(c *gin.Context) {
	ctx := c.Request.Context()
	select {
	case <-time.After(reportTime):
		c.Header("Cache-Control", "no-store")
		c.JSON(http.StatusOK, gin.H{"charges": r.provider.charges.Load()})
	case <-ctx.Done(): // the client has left, or the permit is lost
		c.Header("Retry-After", "1")
		problem(c, http.StatusServiceUnavailable, "The report was not finished. Try again.")
	}
}

// show returns the number of taken places and of waiting requests, on all instances.
func (r *reports) show(c *gin.Context) {
	state, err := r.places.Inspect(c.Request.Context(), reportKey)
	if err != nil {
		c.Header("Retry-After", "1")
		problem(c, http.StatusServiceUnavailable, "It is not known now how many reports are being made.")
		return
	}
	c.Header("Cache-Control", "no-store")
	c.JSON(http.StatusOK, gin.H{
		"places":      reportsAtOnce,
		"taken":       state.InUse,
		"may_wait":    reportsWaiting,
		"waiting":     state.Waiting,
		"served":      r.served.Load(),
		"turned_away": r.turnedAway.Load(),
	})
}

// rush requests many reports of this server at once, and writes the outcome of each as soon as that
// is known: a line of JSON each. The page needs it, since browsers open at most six connections to
// a server and queue other requests: with two reports in progress and four requests waiting, a
// seventh would never arrive.
func (r *reports) rush(c *gin.Context) {
	n, ok := readQuantity(c, 1, maxRush)
	if !ok {
		return
	}
	ctx := c.Request.Context() // when the page is closed, waiters leave
	here, ok := ctx.Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		problem(c, http.StatusInternalServerError, "The server does not know its own address.")
		return
	}
	type outcome struct {
		Number int64 `json:"number"`
		Status int   `json:"status"` // 0 if there was no answer
	}
	outcomes := make(chan outcome, n)
	for i := range n {
		go func() {
			outcomes <- outcome{i + 1, r.ask(ctx, "http://"+here.String()+"/api/report", c.GetString("user"))}
		}()
	}
	c.Header("Content-Type", "application/x-ndjson")
	c.Header("Cache-Control", "no-store")
	lines := json.NewEncoder(c.Writer)
	for range n {
		_ = lines.Encode(<-outcomes) // an error means that the page was closed
		c.Writer.Flush()
	}
}

// ask asks for a report, and returns the status of the answer.
func (r *reports) ask(ctx context.Context, url, user string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	req.Header.Set("X-User", user)
	resp, err := r.client.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}
