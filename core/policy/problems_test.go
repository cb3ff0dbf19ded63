package policy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// declared returns the reasons that are declared as constants, each with the comment behind it.
func declared(t *testing.T) map[Reason]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "denial.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[Reason]string)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "Reason" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			found[Reason(value)] = strings.TrimSpace(spec.Comment.Text())
		}
		return true
	})
	return found
}

func TestEveryReasonHasItsTexts(t *testing.T) {
	found := declared(t)
	if len(found) < 10 {
		t.Fatalf("found only %v", found)
	}
	for reason, comment := range found {
		known, ok := reasons[reason]
		if !ok {
			t.Errorf("%s has no status", reason)
			continue
		}
		if http.StatusText(known.status) == "" || known.status < 400 || known.title == "" || known.base == "" {
			t.Errorf("%s: %+v", reason, known)
		}
		if status, _, _ := strings.Cut(comment, ":"); status != strconv.Itoa(known.status) && status != "gRPC only" {
			t.Errorf("%s has status %d, and its comment says %q", reason, known.status, comment)
		}
	}
	for reason := range reasons {
		if _, ok := found[reason]; !ok {
			t.Errorf("%s is no constant", reason)
		}
	}
}

// The type of a problem is a link: every reason has a section, whose first word is its status, and
// no other section is there.
func TestEveryReasonIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/problems.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := regexp.MustCompile(`(?m)^## (\S+)\n\n(\d{3})\b`).FindAllStringSubmatch(string(page), -1)
	if headings := strings.Count(string(page), "\n## "); headings != len(sections) {
		t.Errorf("%d of %d sections begin with a status", len(sections), headings)
	}
	var documented []Reason
	for _, s := range sections {
		reason := Reason(s[1])
		if slices.Contains(documented, reason) {
			t.Errorf("%s is there twice", reason)
		}
		documented = append(documented, reason)
		if want := strconv.Itoa(Denial{Reason: reason}.Status()); s[2] != want {
			t.Errorf("%s: the page says %s, and its status is %s", reason, s[2], want)
		}
	}
	for reason := range reasons {
		if !slices.Contains(documented, reason) {
			t.Errorf("%s is not on the page", reason)
		}
		d := Denial{Reason: reason}
		if !strings.HasSuffix(d.Type(), "#"+string(reason)) {
			t.Errorf("%s links to %s", reason, d.Type())
		}
	}
}
