package main

import (
	"embed"
	"net/http"

	"github.com/gin-gonic/gin"
)

//go:embed page
var page embed.FS

// servePage serves the shop's page, which loads nothing from other hosts and is not allowed to.
func servePage(r *gin.Engine) {
	for path, file := range map[string]string{
		"/":          "page/index.html",
		"/style.css": "page/style.css",
		"/app.js":    "page/app.js",
		"/icon.svg":  "page/icon.svg",
	} {
		r.Match([]string{http.MethodGet, http.MethodHead}, path, func(c *gin.Context) {
			c.Header("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "+
				"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
			c.Header("X-Content-Type-Options", "nosniff")
			c.Header("Referrer-Policy", "no-referrer")
			c.Header("Cache-Control", "no-cache")
			http.ServeFileFS(c.Writer, c.Request, page, file)
		})
	}
}
