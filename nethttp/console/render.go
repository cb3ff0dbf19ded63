package console

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

//go:embed page
var pages embed.FS

// view is a page that a request asks for.
type view struct {
	title    string
	template string
	// load returns the content. A template shows it, and ?format=json has it as it is.
	load func(ctx context.Context) (any, error)
	// streamed pages send their head before they load, so that an operator sees that something
	// happens. Their status is 200 then, and an error is a part of the page.
	streamed bool
	live     bool // the script of the page swaps its content
}

// sheet is what the templates show.
type sheet struct {
	Title    string
	Root     string
	Page     string // the first segment of its path
	Nav      []navItem
	Links    []link
	Wrong    int
	Operator string
	MayAct   bool
	Live     bool
	Every    string // the pause between two contents of a live page, in seconds, or "off"
	Answer   string // of the action before it
	Error    string
	Data     any
}

type navItem struct {
	Path, Title string
	Here        bool
}

var nav = []navItem{
	{Path: "", Title: "Now"}, {Path: "monitor", Title: "Monitor"}, {Path: "locks", Title: "Locks"},
	{Path: "permits", Title: "Permits"}, {Path: "limits", Title: "Limits"}, {Path: "operations", Title: "Operations"},
	{Path: "tasks", Title: "Tasks"}, {Path: "rules", Title: "Rules"}, {Path: "processes", Title: "Processes"}, {Path: "log", Title: "Log"},
}

var templates = func() map[string]*template.Template {
	functions := template.FuncMap{
		"short": short, "name": escapeName, "rate": rate, "noun": operate.Noun, "add": func(a, b int) int { return a + b },
		"count": count, "page": pageOf, "line": operate.OneLine,
	}
	layout := template.Must(template.New("layout.html").Funcs(functions).ParseFS(pages, "page/layout.html", "page/parts.html"))
	all := make(map[string]*template.Template)
	entries, err := pages.ReadDir("page")
	if err != nil {
		panic(err)
	}
	for _, e := range entries {
		name, isPage := strings.CutSuffix(e.Name(), ".html")
		if !isPage || name == "layout" || name == "parts" {
			continue
		}
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(pages, "page/"+e.Name()))
	}
	return all
}()

// pageOf returns the page of a mechanism's kind.
func pageOf(kind string) string {
	switch kind {
	case "lock":
		return "locks"
	case "semaphore":
		return "permits"
	case "rate_limit":
		return "limits"
	case "idempotency":
		return "operations"
	case "delay":
		return "tasks"
	}
	return "monitor"
}

// rate renders a number of events in 5 s as one a second.
func rate(n uint64) string {
	switch perSecond := float64(n) / 5; {
	case n == 0:
		return "0"
	case perSecond < 10:
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	default:
		return count(uint64(perSecond + 0.5))
	}
}

// count renders a number, with a thin space before each three digits of a long one.
func count(n uint64) string {
	text := strconv.FormatUint(n, 10)
	if len(text) < 5 {
		return text
	}
	var b strings.Builder
	for i, digit := range text {
		if i > 0 && (len(text)-i)%3 == 0 {
			b.WriteRune('\u2009')
		}
		b.WriteRune(digit)
	}
	return b.String()
}

// answers are the texts of ?answer=: an outcome, with answerUnlogged behind it if the store did not take
// the entry of the log.
var answers = map[string]string{
	"done":                     "Done, and in the log.",
	"done" + answerUnlogged:    "Done, but not in the log of actions: the store did not take the entry.",
	"changed":                  "It has changed since you looked, and nothing was done. This is how it is now.",
	"changed" + answerUnlogged: "It has changed since you looked, and nothing was done. That is not in the log of actions.",
}

const answerUnlogged = "-unlogged"

// wrongHeader has a fragment's Wrong, for the number in the navigation.
const wrongHeader = "Lockkeeper-Wrong"

func (q *request) sheet(v view) *sheet {
	s := &sheet{
		Title: v.title, Root: q.root(), Page: q.path.at(0), Links: q.console.links, Wrong: q.console.fleet.wrong(),
		Operator: q.operator.Name, MayAct: q.mayAct(), Live: v.live, Every: q.every(), Answer: answers[q.URL.Query().Get("answer")],
	}
	for _, item := range nav {
		if item.Path == "rules" && len(q.console.rules) == 0 {
			continue
		}
		item.Here = item.Path == s.Page
		s.Nav = append(s.Nav, item)
	}
	return s
}

// every returns the pause between two contents of a live page.
func (q *request) every() string {
	switch every := q.URL.Query().Get("every"); every {
	case "10", "off":
		return every
	}
	return "2"
}

// asJSON reports whether the request asks for JSON.
func (q *request) asJSON() bool { return q.URL.Query().Get("format") == "json" }

// render answers with a page.
func (q *request) render(w http.ResponseWriter, v view) error {
	if q.asJSON() {
		data, err := v.load(q.Context())
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, data)
	}
	if fragment := q.URL.Query().Has("fragment"); fragment || !v.streamed {
		data, err := v.load(q.Context())
		if err != nil {
			return err
		}
		s := q.sheet(v)
		s.Data = data
		if now, ok := data.(*nowData); ok {
			s.Wrong = operate.Wrong(now.Troubles)
		}
		part := "layout.html"
		if fragment {
			part = "content"
			w.Header().Set(wrongHeader, strconv.Itoa(s.Wrong))
		}
		return write(w, http.StatusOK, v.template, part, s)
	}
	s := q.sheet(v)
	if err := write(w, http.StatusOK, v.template, "head", s); err != nil {
		return err
	}
	_ = http.NewResponseController(w).Flush() // a writer that cannot flush sends it later
	data, err := v.load(q.Context())
	if err != nil {
		_, s.Error = answerTo(err)
	}
	s.Data = data
	if data != nil {
		_ = templates[v.template].ExecuteTemplate(w, "content", s) // the client has left
	}
	_ = templates[v.template].ExecuteTemplate(w, "foot", s)
	return nil
}

func write(w http.ResponseWriter, status int, page, part string, s *sheet) error {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_ = templates[page].ExecuteTemplate(w, part, s) // the client has left
	return nil
}

func writeJSON(w http.ResponseWriter, status int, data any) error {
	text, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return fmt.Errorf("json: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n'))
	return nil
}

// fail answers with an error.
func (q *request) fail(w http.ResponseWriter, status int, text string) {
	if q.asJSON() {
		_ = writeJSON(w, status, struct {
			Error string `json:"error"`
		}{text})
		return
	}
	s := &sheet{Title: http.StatusText(status), Root: q.root(), Error: text}
	if q.operator.May >= View {
		s = q.sheet(view{title: http.StatusText(status)})
		s.Error = text
	}
	_ = write(w, status, "error", "layout.html", s)
}

// file is a part of the pages that is the same for all.
type file struct {
	kind string
	text []byte
}

var files = func() map[string]file {
	all := make(map[string]file)
	for name, kind := range map[string]string{
		"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8",
	} {
		text, err := pages.ReadFile("page/" + name)
		if err != nil {
			panic(err)
		}
		all[name] = file{kind, text}
	}
	return all
}()

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("Cache-Control", "no-cache")
	http.ServeContent(w, r, "", time.Time{}, strings.NewReader(string(f.text)))
}
