package main

import (
	"embed"
	"html/template"
	"net/http"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

//go:embed page
var page embed.FS

// code is the files to which the page links.
//
//go:embed server.go checkout.go trials.go unpaid.go
var code embed.FS

// servePage serves the shop's page, with the style that the pages of all examples have, and its code.
func servePage(r *gin.Engine) error {
	files := http.NewServeMux()
	if err := demo.Page(files, page); err != nil {
		return err
	}
	for _, path := range []string{"/", "/style.css", "/checkout.css", "/app.js", "/icon.svg"} {
		r.Match([]string{http.MethodGet, http.MethodHead}, path, gin.WrapH(files))
	}
	listing, err := template.ParseFS(page, "page/code.html")
	if err != nil {
		return err
	}
	r.GET("/code/:file", func(c *gin.Context) { showCode(c, listing) })
	return nil
}

// line is a line of code.
type line struct {
	Text string
	Here bool // the page links to it
}

// showCode shows a file. The first line with the text of the parameter at has the fragment "here".
func showCode(c *gin.Context, listing *template.Template) {
	name, at := c.Param("file"), c.Query("at")
	text, err := code.ReadFile(name)
	if err != nil {
		problem(c, http.StatusNotFound, "The page links to no such file.")
		return
	}
	var lines []line
	found := at == ""
	for text := range strings.Lines(string(text)) {
		here := !found && strings.Contains(text, at)
		found = found || here
		lines = append(lines, line{text, here})
	}
	demo.Headers(c.Writer.Header())
	c.Header("Content-Type", "text/html; charset=utf-8")
	_ = listing.Execute(c.Writer, map[string]any{"Name": name, "Lines": lines}) // an error means that the client has left
}
