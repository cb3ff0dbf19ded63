package main

import (
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/gin-gonic/gin"
)

// counters count what this instance did.
type counters struct {
	provider *provider
	admin    bool         // the page has something for an operator
	requests atomic.Int64 // for payments
	replayed atomic.Int64 // answers given again
	denied   atomic.Int64 // over the rate limit
}

// count is middleware. It stands outside of the others, to see what becomes of their answers.
func (s *counters) count(c *gin.Context) {
	if strings.HasPrefix(c.FullPath(), "/api/checkout") {
		s.requests.Add(1)
	}
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
	c.JSON(http.StatusOK, gin.H{
		"requests": s.requests.Load(),
		"charges":  s.provider.charges.Load(),
		"replayed": s.replayed.Load(),
		"denied":   s.denied.Load(),
		"admin":    s.admin,
	})
}
