package middleware

import (
	"net/http"

	"github.com/gin-gonic/gin"
	ulule "github.com/ulule/limiter/v3/drivers/middleware/gin"

	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

func ginSite(r requests, end func(), middleware ...gin.HandlerFunc) (site, error) {
	gin.SetMode(gin.ReleaseMode)
	runs := new(int)
	e := gin.New()
	e.Use(middleware...)
	e.POST("/orders", func(c *gin.Context) {
		*runs++
		c.String(http.StatusOK, answer)
	})
	return httpSite(e, runs, r, end)
}

func bareGin(r requests) (site, error) { return ginSite(r, nothing) }

func lockkeeperGin(r requests) (site, error) {
	limiter, end, err := newLimiter(r)
	if err != nil {
		return site{}, err
	}
	return ginSite(r, end, ratelimit.New(limiter, ginmw.ByHeader(clientField)))
}

func ululeGin(r requests) (site, error) {
	return ginSite(r, nothing, ulule.NewMiddleware(newUlule(), ulule.WithKeyGetter(func(c *gin.Context) string {
		return c.GetHeader(clientField)
	})))
}

func onceGin(r requests) (site, error) {
	g, end, err := newGuard()
	if err != nil {
		return site{}, err
	}
	return ginSite(r, end, idempotency.New(g, ginmw.ScopeBy(ginmw.ByHeader(clientField))))
}
