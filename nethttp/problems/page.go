package problems

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/docs"
)

// explanation is a section of docs/problems.md.
type explanation struct {
	reason     policy.Reason
	paragraphs []string // of Markdown that has code spans and nothing else

	Type        string `json:"type"`
	Title       string `json:"title"`
	Status      int    `json:"status"`
	Explanation string `json:"explanation"`
}

// explanations returns the explanations of all types, without block quotes, which are notes for
// operators.
func explanations(base string) (all []explanation) {
	for _, section := range strings.Split(docs.Problems(), "\n## ")[1:] {
		heading, text, _ := strings.Cut(section, "\n")
		d := policy.Denial{Reason: policy.Reason(heading), TypeBase: base}
		e := explanation{reason: d.Reason, Type: d.Type(), Title: d.Title(), Status: d.Status()}
		text = strings.TrimPrefix(strings.TrimSpace(text), fmt.Sprintf("%d. ", e.Status)) // the status has its own place
		for paragraph := range strings.SplitSeq(text, "\n\n") {
			if !strings.HasPrefix(paragraph, ">") {
				e.paragraphs = append(e.paragraphs, strings.ReplaceAll(paragraph, "\n", " "))
			}
		}
		e.Explanation = strings.Join(e.paragraphs, "\n\n")
		all = append(all, e)
	}
	return all
}

// page is the content of a URL in each form.
type page [forms]struct {
	contentType, tag string
	body             []byte
}

func newPage(all []explanation) (p page) {
	var v any = all
	if len(all) == 1 {
		v = all[0]
	}
	object, _ := json.Marshal(v) // strings and numbers only: it cannot fail
	object = append(object, '\n')
	p[text].contentType, p[text].body = "text/plain; charset=utf-8", asText(all)
	p[jsonText].contentType, p[jsonText].body = "application/json", object
	p[htmlText].contentType, p[htmlText].body = "text/html; charset=utf-8", asHTML(all)
	for i := range p {
		sum := sha256.Sum256(p[i].body)
		p[i].tag = fmt.Sprintf(`"%x"`, sum[:8])
	}
	return p
}

func asText(all []explanation) []byte {
	var b strings.Builder
	for i, e := range all {
		if i > 0 {
			b.WriteString("\n\n")
		}
		fmt.Fprintf(&b, "%s\nStatus: %d\nType: %s\n\n%s\n", e.Title, e.Status, e.Type, e.Explanation)
	}
	return []byte(b.String())
}

const style = "body{max-width:42em;margin:2em auto;padding:0 1em;font:1.1em/1.5 sans-serif}" +
	"h1{font-size:1.5em;line-height:1.2}h2{margin-top:2em}code{overflow-wrap:anywhere}"

// securityPolicy allows the style, and nothing else.
var securityPolicy = func() string {
	sum := sha256.Sum256([]byte(style))
	return "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}()

func asHTML(all []explanation) []byte {
	title, heading := "Problem types", "h2"
	if len(all) == 1 {
		title, heading = all[0].Title, "h1"
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>%s</title>
<style>%s</style>
</head>
<body>
<main>
`, html.EscapeString(title), style)
	if len(all) > 1 {
		fmt.Fprintf(&b, "<h1>%s</h1>\n", title)
	}
	for _, e := range all {
		fmt.Fprintf(&b, "<%s id=\"%s\">%s</%[1]s>\n", heading, e.reason, html.EscapeString(e.Title))
		fmt.Fprintf(&b, "<p>Status: %d<br>Type: <code>%s</code></p>\n", e.Status, html.EscapeString(e.Type))
		for _, p := range e.paragraphs {
			fmt.Fprintf(&b, "<p>%s</p>\n", spans(p))
		}
	}
	b.WriteString("</main>\n</body>\n</html>\n")
	return []byte(b.String())
}

// spans returns a paragraph with its code spans in HTML: every other part is one.
func spans(paragraph string) string {
	parts := strings.Split(paragraph, "`")
	for i, part := range parts {
		parts[i] = html.EscapeString(part)
		if i%2 == 1 {
			parts[i] = "<code>" + parts[i] + "</code>"
		}
	}
	return strings.Join(parts, "")
}
