package main

import (
	"embed"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

//go:embed page
var page embed.FS

// servePage serves the shop's page, with the style that the pages of all examples have.
func servePage(r *gin.Engine) error {
	files := http.NewServeMux()
	if err := demo.Page(files, page); err != nil {
		return err
	}
	for _, path := range []string{"/", "/style.css", "/checkout.css", "/app.js", "/icon.svg"} {
		r.Match([]string{http.MethodGet, http.MethodHead}, path, gin.WrapH(files))
	}
	return nil
}
