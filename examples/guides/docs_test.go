// Package guides_test has the code of the guides and of the other pages, and checks that it is the code
// that they show.
package guides_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/examples/internal/doccheck"
)

func repository(t *testing.T) *doccheck.Repository {
	t.Helper()
	r, err := doccheck.Read(os.DirFS("../.."), "benchmarks/results")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range []string{"README.md", "CONTRIBUTING.md", "docs/stores.md", "benchmarks/README.md"} {
		if !slices.Contains(r.Documents(), page) {
			t.Fatalf("%s is not checked, only %q", page, r.Documents())
		}
	}
	return r
}

// Go code in a page is an excerpt of a file that is compiled, of which "// …" skips lines.
func TestCodeOfPages(t *testing.T) {
	for _, finding := range repository(t).Code() {
		t.Error(finding)
	}
}

// A reader who copies the code of a guide has all that it needs.
func TestCodeOfGuidesIsComplete(t *testing.T) {
	for _, finding := range repository(t).Complete("docs/guides") {
		t.Error(finding)
	}
}

func TestLinksOfPages(t *testing.T) {
	for _, finding := range repository(t).Links() {
		t.Error(finding)
	}
}

// measured are the sections whose figures are those of the last run of the benchmarks, by page.
var measured = map[string]string{
	"README.md": "Beside other libraries", "README.zh-CN.md": "与其他库对比", "docs/performance.md": "How fast it is",
}

func TestFiguresOfPages(t *testing.T) {
	for page, section := range measured {
		findings, err := repository(t).Figures(page, section, "benchmarks/results/results.json")
		if err != nil {
			t.Error(err)
		}
		for _, finding := range findings {
			t.Error(finding)
		}
	}
}

var translated = flag.String("translated", "", "Chinese `pages`, separated by commas, in which all changes of their "+
	"English pages have been made: write the present versions of these into their notes")

// names are words that are the same in Chinese.
var names = strings.Fields(`
	Go Linux Lockkeeper PostgreSQL Redis amd64 connect-go echo fiber gRPC gin v3 v4 v5
	Asynq Curator Envoy Hystrix Kong Redisson River Sentinel Temporal failsafe-go httprate pglock redis_rate redislock
	redsync resilience4j rueidislock ulule/limiter x/time/rate
`)

// A Chinese page says what its English page says today.
func TestTranslations(t *testing.T) {
	for page := range strings.SplitSeq(*translated, ",") {
		if page == "" {
			continue
		}
		text, err := repository(t).Stamp(page)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("../../"+page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, finding := range repository(t).Translations(names, "docs/zh/README.md") {
		t.Error(finding)
	}
}
