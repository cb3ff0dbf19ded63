package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/ginmw"
)

const (
	// reportTime is how long a report takes. It is costly, so no more than a few are made at a
	// time.
	reportTime     = 300 * time.Millisecond
	reportsAtOnce  = 2
	reportsWaiting = 4
	reportWait     = time.Second
	// maxRush is how many reports one request may have asked for at once.
	maxRush = 20
)

// reports makes them, and counts what became of the requests for them on this instance.
type reports struct {
	provider   *provider
	client     *http.Client
	served     atomic.Int64
	turnedAway atomic.Int64
}

func newReports(p *provider) *reports {
	// A connection for each request, as if each came from somewhere else.
	return &reports{provider: p, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// count is middleware. It stands outside of the one that turns requests away.
func (r *reports) count(c *gin.Context) {
	c.Next()
	switch {
	case c.Request.Context().Err() != nil: // it has left
	case c.Writer.Status() == http.StatusOK:
		r.served.Add(1)
	case c.Writer.Status() == http.StatusTooManyRequests, c.Writer.Status() == http.StatusServiceUnavailable:
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

// show returns the number of taken places and of waiting requests of a key, on all instances.
func (r *reports) show(places *semaphore.Semaphore, of ginmw.KeyFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		key, err := of(c)
		var state semaphore.State
		if err == nil {
			state, err = places.Inspect(c.Request.Context(), key)
		}
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
}

// outcome is what became of one of many requests.
type outcome struct {
	Number     int64  `json:"number"`
	Status     int    `json:"status"` // 0 if there was no answer
	RetryAfter string `json:"retry_after,omitempty"`
	Problem    string `json:"problem,omitempty"` // its type
}

// rush requests many reports at a path of this server at once, and writes the outcome of each as
// soon as that is known: a line of JSON each. The page needs it, since browsers open at most six
// connections to a server and queue other requests: with two reports in progress and four requests
// waiting, a seventh would never arrive.
func (r *reports) rush(path string) gin.HandlerFunc {
	return func(c *gin.Context) {
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
		outcomes := make(chan outcome, n)
		for i := range n {
			go func() {
				o := r.ask(ctx, "http://"+here.String()+path, c.GetString("user"))
				o.Number = i + 1
				outcomes <- o
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
}

// ask asks for a report.
func (r *reports) ask(ctx context.Context, url, user string) (o outcome) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return o
	}
	req.Header.Set("X-User", user)
	resp, err := r.client.Do(req)
	if err != nil {
		return o
	}
	defer func() { _ = resp.Body.Close() }()
	var problem struct{ Type string }
	_ = json.NewDecoder(resp.Body).Decode(&problem) // a report has no type
	return outcome{Status: resp.StatusCode, RetryAfter: resp.Header.Get("Retry-After"), Problem: problem.Type}
}
