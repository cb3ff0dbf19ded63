// Command redis is the program of the README on Redis.
package main

import (
	"context"
	"log"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func main() {
	client := redis.NewClient(&redis.Options{
		Addr:                  "127.0.0.1:6379",
		ContextTimeoutEnabled: true, // required: a call ends at its deadline
		MinIdleConns:          4,    // connections are open before the first call
	})
	defer func() { _ = client.Close() }()
	store, err := redisstore.New(client)
	if err != nil {
		panic(err)
	}
	defer store.Close()
	findings, err := store.Check(context.Background())
	if err != nil {
		log.Print("calls fail until this is mended: ", err) // no server, or one that the store cannot use
	}
	for _, finding := range findings {
		log.Print(finding) // a setting that weakens a promise, and its remedy
	}

	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100).Burst(20))
	if err != nil {
		panic(err)
	}
	orders, err := guard.New(store, "checkout")
	if err != nil {
		panic(err)
	}

	r := gin.New()
	r.Use(ratelimit.New(limiter, ginmw.ByClientIP(clientip.Direct())))
	r.Use(authenticate)
	r.POST("/checkout", idempotency.New(orders, ginmw.ScopeBy(ginmw.ByContext("user")), policy.Required()), checkout)
	if err := r.Run("127.0.0.1:8080"); err != nil {
		panic(err)
	}
}

func authenticate(c *gin.Context) { c.Set("user", "customer-1") } // yours goes here

func checkout(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"order": 1}) }
