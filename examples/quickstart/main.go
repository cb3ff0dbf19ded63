// Command quickstart is the program in the README.
package main

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func main() {
	store := memstore.New() // or redisstore.New(client), below
	defer store.Close()
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100).Burst(20))
	if err != nil {
		panic(err)
	}
	orders, err := guard.New(store, "checkout")
	if err != nil {
		panic(err)
	}

	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.ByClientIP(clientip.Direct()))) // behind a proxy: clientip.TrustedProxies
	r.Use(authenticate)
	r.POST("/checkout", idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user")), policy.Required()), checkout)
	if err := r.Run("127.0.0.1:8080"); err != nil {
		panic(err)
	}
}

func authenticate(c *gin.Context) { c.Set("user", "customer-1") } // yours goes here

func checkout(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"order": 1}) }
