package problems_test

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp/problems"
)

const base = "https://shop.example/problems/"

// section is one of docs/problems.md.
type section struct {
	reason policy.Reason
	text   []string // the words without the status and without notes
	status int
}

// sections reads docs/problems.md.
func sections(t *testing.T) (all []section) {
	t.Helper()
	file, err := os.Open("../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it has been read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		line := lines.Text()
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			all = append(all, section{reason: policy.Reason(heading)})
		} else if len(all) > 0 && !strings.HasPrefix(line, ">") {
			all[len(all)-1].text = append(all[len(all)-1].text, strings.Fields(line)...)
		}
	}
	if len(all) < 10 {
		t.Fatalf("found only %v", all)
	}
	for i, s := range all {
		status, ok := strings.CutSuffix(s.text[0], ".")
		if all[i].status, err = strconv.Atoi(status); err != nil || !ok {
			t.Errorf("%s begins with %q and not with its status", s.reason, s.text[0])
		}
		all[i].text = s.text[1:]
	}
	return all
}

// get sends a GET request with these header fields: name, value, name, value.
func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	return send(h, http.MethodGet, path, header...)
}

func send(h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// words returns what a browser shows of a page.
func words(page string) []string {
	_, body, _ := strings.Cut(page, "<body>")
	return strings.Fields(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(body, " ")))
}

// squeeze joins words without spaces, which tags add.
func squeeze(words []string) string { return strings.ReplaceAll(strings.Join(words, ""), "`", "") }

// Every section of docs/problems.md is a page, in each form, and so is the page of all of them.
func TestPagesAreTheDocumentation(t *testing.T) {
	h := problems.Handler(base)
	markup := regexp.MustCompile("[`*_#|]|\\]\\(|(^|\n)[-+] ")
	all := get(h, "/problems/", "Accept", "text/html").Body.String()
	for _, s := range sections(t) {
		d := policy.Denial{Reason: s.reason, TypeBase: base}
		if d.Status() != s.status {
			t.Errorf("%s: the status is %d, and documented as %d", s.reason, d.Status(), s.status)
		}
		path := strings.TrimPrefix(d.Page(), "https://shop.example")

		plain := get(h, path)
		head, explanation, _ := strings.Cut(plain.Body.String(), "\n\n")
		if want := fmt.Sprintf("%s\nStatus: %d\nType: %s", d.Title(), d.Status(), d.Type()); plain.Code != http.StatusOK || head != want {
			t.Errorf("%s: %d\n%s\nwant\n%s", path, plain.Code, head, want)
		}
		if got := strings.Fields(explanation); !slices.Equal(got, s.text) {
			t.Errorf("%s: %q\nwant %q", path, got, s.text)
		}

		var object struct {
			Type, Title, Explanation string
			Status                   int
		}
		body := get(h, path, "Accept", "application/json").Body
		if err := json.Unmarshal(body.Bytes(), &object); err != nil || object.Type != d.Type() || object.Title != d.Title() ||
			object.Status != d.Status() || !slices.Equal(strings.Fields(object.Explanation), s.text) {
			t.Errorf("%s: %+v, %v", path, object, err)
		}

		page := get(h, path, "Accept", "text/html").Body.String()
		want := squeeze(append(strings.Fields(fmt.Sprintf("%s Status: %d Type: %s", d.Title(), d.Status(), d.Type())), s.text...))
		if got := squeeze(words(page)); got != want {
			t.Errorf("%s: %s\nwant %s", path, got, want)
		}
		_, shown, _ := strings.Cut(page, "<p>Status")
		_, shown, _ = strings.Cut(shown, "</p>") // the type may have what looks like markup
		shown = html.UnescapeString(regexp.MustCompile(`(?s)<code>.*?</code>`).ReplaceAllString(shown, ""))
		if found := markup.FindString(shown); found != "" {
			t.Errorf("%s: the page does not render %q", path, found)
		}
		if !strings.Contains(page, "<title>"+html.EscapeString(d.Title())+"</title>") {
			t.Errorf("%s has another title", path)
		}
		if !strings.Contains(all, `<h2 id="`+string(s.reason)+`">`) || !strings.Contains(squeeze(words(all)), want) {
			t.Errorf("%s is not on the page of all types", s.reason)
		}
	}
	var list []struct{ Type string }
	if err := json.Unmarshal(get(h, "/problems/", "Accept", "application/json").Body.Bytes(), &list); err != nil || len(list) != len(sections(t)) {
		t.Errorf("%v, %v", list, err)
	}
}

// A base that ends in # makes every request one for the page of all types.
func TestOnePage(t *testing.T) {
	one, many := problems.Handler("/problems#"), problems.Handler("/problems/")
	want := strings.ReplaceAll(get(many, "/problems/").Body.String(), "/problems/", "/problems#")
	for _, path := range []string{"/problems", "/", "/problems/key-missing"} {
		if w := get(one, path); w.Code != http.StatusOK || w.Body.String() != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if !strings.Contains(want, "Type: /problems#key-missing\n") {
		t.Error(want)
	}
}

func TestAccept(t *testing.T) {
	h := problems.Handler(base)
	const text, object, page = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
	for accept, want := range map[string]string{
		"":    text,
		"*/*": text,
		"text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8": page,
		"application/json":                              object,
		"application/json, text/plain, */*":             text,
		"application/*":                                 object,
		"Text/HTML;Q=0.5, application/json;q=0.4":       page,
		"text/*;q=0.2, text/html;q=0.1":                 text,
		"text/plain;q=0, text/*":                        page,
		"*/*, text/plain;q=0, text/html;q=0":            object,
		"application/problem+json, application/json":    object,
		"application/problem+json":                      text,
		"image/png":                                     text,
		"text/html;q=NaN, text/html;q=7, text/html;q=x": text,
		",;,/,text/html;":                               page,
		"text/html;level=1":                             page,
		strings.Repeat("a/b,", 31) + "text/html":        page,
		strings.Repeat("a/b,", 10_000) + "text/html":    text,
	} {
		w := get(h, "/problems/locked", "Accept", accept)
		if got := w.Header().Get("Content-Type"); w.Code != http.StatusOK || got != want {
			t.Errorf("%.80q: %d %s, want %s", accept, w.Code, got, want)
		}
		if got := w.Header().Values("Vary"); !slices.Equal(got, []string{"Accept"}) {
			t.Errorf("varies by %v", got)
		}
	}
	w := get(h, "/problems/locked", "Accept", "image/png", "Accept", "text/html")
	if got := w.Header().Get("Content-Type"); got != page {
		t.Errorf("two fields: %s", got)
	}
}

func TestCaching(t *testing.T) {
	h := problems.Handler(base)
	seen := make(map[string]bool)
	for _, path := range []string{"/problems/", "/problems/locked", "/problems/in-flight"} {
		for _, accept := range []string{"text/plain", "text/html", "application/json"} {
			w := get(h, path, "Accept", accept)
			tag := w.Header().Get("ETag")
			if seen[tag] || w.Header().Get("Cache-Control") != "public, max-age=3600" {
				t.Errorf("%s as %s: %v", path, accept, w.Header())
			}
			seen[tag] = true
			again := get(h, path, "Accept", accept, "If-None-Match", tag)
			if again.Code != http.StatusNotModified || again.Body.Len() > 0 || again.Header().Get("ETag") != tag || again.Header().Get("Vary") != "Accept" {
				t.Errorf("%s as %s again: %d %v", path, accept, again.Code, again.Header())
			}
			if other := get(h, path, "Accept", accept, "If-None-Match", `"other"`); other.Code != http.StatusOK {
				t.Errorf("another tag: %d", other.Code)
			}
			if got := get(problems.Handler(base), path, "Accept", accept).Header().Get("ETag"); got != tag {
				t.Errorf("another process has the tag %s, want %s", got, tag)
			}
			head := send(h, http.MethodHead, path, "Accept", accept)
			if head.Code != http.StatusOK || head.Body.Len() > 0 || head.Header().Get("Content-Length") != strconv.Itoa(w.Body.Len()) ||
				head.Header().Get("ETag") != tag {
				t.Errorf("HEAD %s as %s: %d %v", path, accept, head.Code, head.Header())
			}
		}
	}
}

// A page allows its own style and nothing else, and contains nothing of the request.
func TestPagesAreSafe(t *testing.T) {
	h := problems.Handler(base)
	w := get(h, "/problems/key-malformed", "Accept", "text/html")
	_, rest, _ := strings.Cut(w.Body.String(), "<style>")
	style, _, ok := strings.Cut(rest, "</style>")
	sum := sha256.Sum256([]byte(style))
	want := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if got := w.Header().Get("Content-Security-Policy"); !ok || got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := w.Header().Get("X-Content-Type-Options"); got != "nosniff" {
		t.Errorf("nosniff is %q", got)
	}
	const evil = "%3Cscript%3Ealert(1)%3C/script%3E"
	again := get(h, "/problems/key-malformed?"+evil, "Accept", "text/html", "Referer", evil, "X-Forwarded-Host", evil, "Host", evil)
	if again.Body.String() != w.Body.String() {
		t.Errorf("the page depends on the request:\n%s", again.Body)
	}
	for _, path := range []string{
		"/problems/" + evil, "/problems/unknown", "/problems/Key-Missing", "/problems/key-missing.html", "/problems", "/problems/key-missing%2Fx",
	} {
		w := get(h, path, "Accept", "text/html")
		if w.Code != http.StatusNotFound || w.Body.String() != "404 page not found\n" || w.Header().Get("Cache-Control") != "" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		if w := send(h, method, "/problems/locked"); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d %v", method, w.Code, w.Header())
		}
	}
	const odd = "https://shop.example/'a&b'/" // characters that a URL may have, and HTML escapes
	page := get(problems.Handler(odd), "/'a&b'/locked", "Accept", "text/html").Body.String()
	if !strings.Contains(page, "<code>"+html.EscapeString(odd+"locked")+"</code>") {
		t.Errorf("the type is not escaped:\n%s", page)
	}
}

func TestHandlerRefusesABase(t *testing.T) {
	for base, want := range map[string]string{
		"":                                "policy: ProblemTypes: ",
		"https://shop.example/problems":   "policy: ProblemTypes: ",
		"https://shop.example/?problem=":  "problems: Handler: ",
		"https://shop.example/?x=/":       "problems: Handler: ",
		"https://shop.example/#problems/": "problems: Handler: ",
		"https://shop.example/?x#":        "problems: Handler: ",
		"/problems?":                      "problems: Handler: ",
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, want) {
					t.Errorf("%q: panicked with %q", base, got)
				}
			}()
			problems.Handler(base)
		}()
	}
}
