// Command exclusive_option_on_concurrency is compiled by TestWiring. An option stands on the wrong middleware.
package main

import (
	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
)

var (
	carts   *lock.Locker
	reports *semaphore.Semaphore
)

func main() {
	r := gin.New()
	r.Use(exclusive.New(carts, ginmw.ByParam("id"), policy.RunUnprotected()))
	r.Use(concurrency.New(reports, ginmw.Global(), policy.RunUnprotected()))
}
