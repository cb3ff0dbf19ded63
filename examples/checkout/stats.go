package main

import (
	"net/http"
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

// counters count what customers requested of this instance, and what became of it.
type counters struct {
	provider *provider
	console  bool // there is one
	requests atomic.Int64
	replayed atomic.Int64 // answers given again
	denied   atomic.Int64 // over the rate limit
}

// arrive is middleware. A request that was asked to come back, and does so with X-Retry, has been
// counted.
func (s *counters) arrive(c *gin.Context) {
	if c.GetHeader("X-Retry") == "" {
		s.requests.Add(1)
	}
}

// count is middleware. It stands outside of the others, to see what becomes of their answers.
func (s *counters) count(c *gin.Context) {
	s.arrive(c)
	c.Next()
	switch {
	case c.Writer.Status() == http.StatusTooManyRequests:
		s.denied.Add(1)
	case c.Writer.Header().Get("Idempotency-Replayed") == "true":
		s.replayed.Add(1)
	}
}

func (s *counters) show(c *gin.Context) {
	c.Header("Cache-Control", "no-store")
	c.JSON(http.StatusOK, gin.H{ // what is part of the requests is read before them
		"charges":  s.provider.charges.Load(),
		"replayed": s.replayed.Load(),
		"denied":   s.denied.Load(),
		"requests": s.requests.Load(),
		"console":  s.console,
	})
}
