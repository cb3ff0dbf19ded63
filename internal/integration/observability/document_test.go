package observability_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const documentPath = "../../../docs/observability.md"

// table has the rows of a table in a document: cells by the title of their column.
type table []map[string]string

// readTable returns the table of a document whose first column has a title.
func readTable(t testing.TB, title string) table {
	t.Helper()
	text, err := os.ReadFile(documentPath)
	if err != nil {
		t.Fatal(err)
	}
	var (
		titles []string
		rows   table
	)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|") && titles != nil:
			return rows
		case strings.HasPrefix(line, "| "+title+" |"):
			titles = cells(line)
		case titles != nil && !strings.HasPrefix(line, "|--"):
			row := make(map[string]string)
			for i, cell := range cells(line) {
				row[titles[i]] = cell
			}
			rows = append(rows, row)
		}
	}
	if rows == nil {
		t.Fatalf("%s has no table of %s", documentPath, title)
	}
	return rows
}

func cells(line string) (all []string) {
	for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
		all = append(all, strings.TrimSpace(cell))
	}
	return all
}

var quoted = regexp.MustCompile("`([^`]*)`")

// words returns the texts between backticks, sorted.
func words(cell string) (all []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	slices.Sort(all)
	return all
}

// same compares a document with the exported signals, both ways.
func same[T any](t *testing.T, what string, documented, exported map[string]T) {
	t.Helper()
	for name, want := range documented {
		if got, ok := exported[name]; !ok {
			t.Errorf("the %s %s is documented and was not exported", what, name)
		} else if a, b := fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got); a != b {
			t.Errorf("the %s %s is documented as\n%s, and exported as\n%s", what, name, a, b)
		}
	}
	for name, got := range exported {
		if _, ok := documented[name]; !ok {
			t.Errorf("the %s %s was exported and is not documented: %+v", what, name, got)
		}
	}
}

// checkDocument compares the document with the exported signals.
func (e exported) checkDocument(t *testing.T) {
	instruments, buckets := make(map[string]instrument), make(map[string]string)
	for _, row := range readTable(t, "Instrument") {
		name := words(row["Instrument"])[0]
		instruments[name] = instrument{
			row["Kind"], words(row["Unit"])[0], strings.Join(words(row["Scope"]), ", "), words(row["Attributes"]),
		}
		if row["Buckets"] != "" {
			buckets[name] = row["Buckets"]
		}
	}
	same(t, "instrument", instruments, e.instruments)

	bounds := make(map[string]string)
	for _, row := range readTable(t, "Buckets") {
		bounds[row["Buckets"]] = row["Bounds"]
	}
	for name := range buckets {
		buckets[name] = bounds[buckets[name]]
	}
	same(t, "buckets of", buckets, e.buckets)

	values := make(map[string][]string)
	for _, row := range readTable(t, "Attribute") {
		values[words(row["Attribute"])[0]] = words(row["Values"])
	}
	for _, row := range readTable(t, "Idempotency result") {
		const key = "lockkeeper.idempotency.result"
		values[key] = slices.Sorted(slices.Values(append(values[key], words(row["Idempotency result"])...)))
	}
	seen := make(map[string][]string)
	for key, s := range e.values {
		if seen[key] = s.sorted(); key == "lockkeeper.policy" || key == "lockkeeper.rules" || key == "lockkeeper.lock.holder" { // the application's
			seen[key] = nil
		}
	}
	same(t, "attribute", values, seen)

	spans := make(map[string]span)
	for _, row := range readTable(t, "Span") {
		name := "the current span"
		if of := words(row["Scope"]); len(of) > 0 {
			name = words(row["Span"])[0] + " of " + of[0]
		}
		spans[name] = span{row["Kind"], words(row["Attributes"]), words(row["Events"]), row["Links to"] != ""}
	}
	if current := e.spans["the current span"]; current.Kind != "" {
		current.Kind = "" // the application's
		e.spans["the current span"] = current
	}
	same(t, "span", spans, e.spans)

	events := make(map[string][]string)
	for _, row := range readTable(t, "Event") {
		events[words(row["Event"])[0]] = words(row["Attributes"])
	}
	same(t, "event", events, e.events)
}

// checkLog compares the document with the log.
func (w *world) checkLog(t *testing.T) {
	documented, logged := make(map[string]string), make(map[string]string)
	for _, row := range readTable(t, "Message") {
		documented[words(row["Message"])[0]] = fmt.Sprint(row["Level"], words(row["Attributes"]))
	}
	attributes := make(map[string]set)
	for _, record := range w.log.records(t, "") {
		message := record["msg"].(string)
		if attributes[message] == nil {
			attributes[message] = make(set)
		}
		for key := range record {
			if !slices.Contains([]string{"time", "level", "msg"}, key) {
				attributes[message][key] = true
			}
		}
		logged[message] = fmt.Sprint(record["level"], attributes[message].sorted())
	}
	// Of a store on PostgreSQL, whose own test drives it: no server of PostgreSQL runs here.
	const ofPostgreSQL = "lockkeeper: pushes no longer arrive on a connection; the store listens on another one"
	logged[ofPostgreSQL] = documented[ofPostgreSQL]
	same(t, "message", documented, logged)
}

// boundsText spells the bounds of buckets as the document does.
func boundsText(bounds []float64) string {
	texts := make([]string, len(bounds))
	for i, b := range bounds {
		texts[i] = strconv.FormatFloat(b, 'f', -1, 64)
	}
	return strings.Join(texts, ", ")
}
