// Command concurrency_option_on_idempotency is compiled by TestWiring. An option stands on the wrong middleware.
package main

import (
	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

var (
	orders  *guard.Guard
	reports *semaphore.Semaphore
)

func main() {
	r := gin.New()
	r.Use(idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user")), policy.MaxWaiting(4)))
	r.Use(concurrency.New(reports, ginmw.Global(), policy.MaxWaiting(4)))
}
