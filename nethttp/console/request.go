package console

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// request is a request of an operator.
type request struct {
	*http.Request
	console  *Console
	operator Operator
	path     segments
	form     url.Values // of a POST
}

// segments are the parts of a path below the mount.
type segments []string

// split returns the segments of an escaped path. A segment that is not one of this package's names is
// kept as it is, and matches nothing.
func split(escaped string) segments {
	parts := strings.Split(strings.Trim(escaped, "/"), "/")
	if parts[0] == "" {
		return nil
	}
	for i, part := range parts {
		if text, err := url.PathUnescape(part); err == nil {
			parts[i] = text
		}
	}
	return parts
}

func (s segments) len() int { return len(s) }

// at returns a segment, or an empty text.
func (s segments) at(i int) string {
	if i >= len(s) {
		return ""
	}
	return s[i]
}

// slashed returns the path of a request, relative to itself, with a slash at its end.
func slashed(r *http.Request) string {
	before, query, found := strings.Cut(r.RequestURI, "?")
	if found {
		query = "?" + query
	}
	return "./" + path.Base(before) + "/" + query
}

// root returns the relative URL of the mount.
func (q *request) root() string {
	depth := strings.Count(q.URL.EscapedPath(), "/") - 1
	if depth <= 0 {
		return "./"
	}
	return strings.Repeat("../", depth)
}

// escapeName makes a mechanism's name one segment of a path that no proxy changes: a byte other than
// a letter, a digit, a hyphen or an underscore becomes a tilde and two hexadecimal digits.
func escapeName(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "~%02x", c)
		}
	}
	return b.String()
}

// unescapeName is the reverse of escapeName. It reports false for a text that escapeName does not
// make.
func unescapeName(text string) (string, bool) {
	name, err := url.PathUnescape(strings.ReplaceAll(text, "~", "%"))
	return name, err == nil && name != "" && escapeName(name) == text
}

// name returns the mechanism's name in a segment.
func (q *request) name(i int) (string, error) {
	name, ok := unescapeName(q.path.at(i))
	if !ok {
		return "", errNotFound
	}
	return name, nil
}

// fields are the fields that forms may have.
var fields = map[string]bool{
	"key": true, "scope": true, "id": true, "why": true, "fence": true, "version": true, "hold": true,
	"outcome": true, "status": true, "type": true, "body": true, "confirm": true,
}

var errForm = errors.New("the form cannot be read: it has up to 16 KiB, and each field once")

// readForm reads the form of a POST.
func (q *request) readForm(w http.ResponseWriter) error {
	kind, _, _ := strings.Cut(q.Header.Get("Content-Type"), ";")
	if kind != "application/x-www-form-urlencoded" {
		return errors.New("the form must be of type application/x-www-form-urlencoded")
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, q.Body, maxBody))
	if err != nil {
		return errForm
	}
	q.form, err = url.ParseQuery(string(text))
	if err != nil {
		return errForm
	}
	for field, values := range q.form {
		if len(values) > 1 {
			return errForm
		}
		if !fields[field] {
			return fmt.Errorf("the form has an unknown field")
		}
	}
	return nil
}

// mayAct reports whether the operator's pages have actions.
func (q *request) mayAct() bool { return q.operator.May == Act }

var errView = problem{http.StatusForbidden, "You may look, but not act."}

// key returns what pages show of a key: its ID, and the key itself if that is allowed.
func (q *request) key(key string) operate.ShownKey { return operate.Show(key, q.console.showKeys) }

// sentence makes an error's text one.
func sentence(err error) string {
	text := err.Error()
	if text == "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:] + "."
}

// short rounds a time for people, with its number and unit on one line.
func short(d time.Duration) string { return strings.ReplaceAll(operate.Short(d), " ", "\u00a0") }
