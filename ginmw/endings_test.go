package ginmw_test

import (
	"context"
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// Around implements mwtest.Natively.
func (framework) Around() map[string]any {
	return map[string]any{
		"gin.CustomRecovery": gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) {
			c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error": "internal"})
		}),
		"the error handler of the documentation": gin.HandlerFunc(func(c *gin.Context) {
			c.Next()
			if len(c.Errors) > 0 {
				c.JSON(http.StatusInternalServerError, gin.H{"message": c.Errors.Last().Error()})
			}
		}),
		"an error handler that heeds what is written": gin.HandlerFunc(func(c *gin.Context) {
			c.Next()
			if len(c.Errors) > 0 && !c.Writer.Written() {
				c.JSON(http.StatusPaymentRequired, gin.H{"message": c.Errors.Last().Error()})
			}
		}),
		"what renders values": gin.HandlerFunc(func(c *gin.Context) {
			c.Next()
			if value, ok := c.Get("answer"); ok && !c.Writer.Written() {
				c.JSON(http.StatusCreated, value)
			}
		}),
		"a deadline": gin.HandlerFunc(func(c *gin.Context) {
			ctx, cancel := context.WithTimeout(c.Request.Context(), mwtest.Briefly)
			defer cancel()
			c.Request = c.Request.WithContext(ctx)
			c.Next()
			if ctx.Err() != nil && !c.Writer.Written() {
				c.AbortWithStatus(http.StatusGatewayTimeout)
			}
		}),
	}
}

// Ends implements mwtest.Natively.
func (framework) Ends() map[string]any {
	failed := errors.New("failed")
	ends := map[string]gin.HandlerFunc{
		"an error":                    func(c *gin.Context) { _ = c.Error(failed) },
		"an error with a status":      func(c *gin.Context) { _ = c.AbortWithError(http.StatusPaymentRequired, failed) },
		"a value":                     func(c *gin.Context) { c.Set("answer", "done") },
		"a status":                    func(c *gin.Context) { c.Status(http.StatusAccepted) },
		"JSON that cannot be encoded": func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"f": func() {}}) },
		"another writer": func(c *gin.Context) {
			c.Writer = struct{ gin.ResponseWriter }{c.Writer}
			c.String(http.StatusCreated, "done")
		},
		"the context's error": func(c *gin.Context) {
			<-c.Request.Context().Done()
			_ = c.Error(c.Request.Context().Err())
		},
	}
	all := map[string]any{}
	for name, end := range ends {
		all[name] = gin.HandlerFunc(func(c *gin.Context) { end(c); c.Abort() })
	}
	return all
}
