// Command exclusive_option_on_ratelimit is compiled by TestWiring. An option stands on the wrong middleware.
package main

import (
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

var (
	limiter *tokenbucket.Limiter
	carts   *lock.Locker
)

func main() {
	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.Global(), policy.Wait(time.Second)))
	r.Use(exclusive.New(carts, ginmw.ByParam("id"), policy.Wait(time.Second)))
}
