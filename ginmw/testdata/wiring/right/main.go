// Command right is compiled by TestWiring. It is what the others get wrong, and compiles.
package main

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

var (
	limiter *tokenbucket.Limiter
	orders  *guard.Guard
	carts   *lock.Locker
	reports *semaphore.Semaphore
)

func main() {
	health := ginmw.Unless(func(c *gin.Context) bool { return c.FullPath() == "/health" })
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.Global(), policy.FailOpen(), health))
	r.Use(idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user")), policy.Required(), policy.RunUnprotected(), health))
	r.Use(exclusive.New(carts, ginmw.ByParam("id"), policy.Wait(time.Second), policy.RunUnprotected(), health))
	r.Use(concurrency.New(reports, ginmw.Global(), policy.Wait(time.Second), policy.MaxWaiting(4), policy.PerInstance(), policy.FailOpen(), health))
}
