// Package docs has the page of this folder that programs serve. Applications serve it with
// nethttp/problems.
package docs

import _ "embed"

//go:embed problems.md
var problems string

// Problems returns problems.md. Its sections have paragraphs, code spans and, for notes that are not
// served, block quotes; what serves them renders no other Markdown.
func Problems() string { return problems }
