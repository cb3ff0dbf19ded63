// Command exclusive_option_on_idempotency is compiled by TestWiring. An option stands on the wrong middleware.
package main

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

var (
	limiter *tokenbucket.Limiter
	orders  *guard.Guard
)

func main() {
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.Global(), policy.FailOpen()))
	r.Use(idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user")), policy.Wait(time.Second)))
}
