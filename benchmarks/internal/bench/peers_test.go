package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
)

// The report begins with what was measured beside other libraries, better and worse, with a chart.
func TestReportBesideOtherLibraries(t *testing.T) {
	of := func(what, column, theirs string) pair { return pair{what, "speed", column, "Lockkeeper", theirs} }
	all := []peer{
		{"fast & small", []pair{of("work", "rate", "fast"), of("cost", "cost", "fast"), of("size", "size", "fast"), of("share", "share", "fast")}},
		{"absent", []pair{of("work", "rate", "absent"), {"work", "none", "rate", "Lockkeeper", "fast"}}},
		{"slow", []pair{of("work", "rate", "slow")}},
	}
	row := func(name string, values ...float64) rowReport {
		r := rowReport{Name: name, Samples: map[string][]float64{}}
		for i, column := range []string{"rate", "cost", "size", "share"} {
			r.Samples[column] = []float64{values[i]}
		}
		return r
	}
	r := report{Sections: []sectionReport{{Tables: []tableReport{{
		ID:      "speed",
		Columns: []columnReport{{Name: "rate", Unit: "1/s", Better: "more"}, {Name: "cost", Unit: "µs", Better: "less"}, {Name: "size"}, {Name: "share", Better: "more"}},
		Rows:    []rowReport{row("slow", 20.2, 1, 1, 1), row("Lockkeeper", 20, 4, 1, 0), row("fast", 10, 2, 1, 1)},
	}}}}}
	var text strings.Builder
	r.besidePeers(func(format string, args ...any) { _, _ = fmt.Fprintf(&text, format, args...) }, all)
	for _, want := range []string{
		"\n|---|---|---|---|---|\n| fast & small | work, 1/s | 20.0 | 10.0 | 2.0 × better |\n| fast & small | cost, µs | 4.00 | 2.00 | 2.0 × worse |\n" +
			"| slow | work, 1/s | 20.0 | 20.2 | even |\n",
		"![Lockkeeper beside other libraries](charts/peers.svg)",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
	svg := string(r.peersChart(all))
	for _, want := range []string{"fast &amp; small: work</text>", `text-anchor="start">2.0 ×</text>`, `text-anchor="end">2.0 ×</text>`, ">even</text>"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart lacks %q:\n%s", want, svg)
		}
	}
	if r.measured(all[1:2]) || !r.measured(all) {
		t.Error("a library counts as measured that is not, or the other way round")
	}
}

// Each pair is in the published results, but for tables that are newer than these.
func TestPairsArePublished(t *testing.T) {
	data, err := os.ReadFile("../../results/results.json")
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	for _, peer := range peers() {
		for _, both := range peer.pairs {
			if r.table(both.table) == nil {
				t.Logf("the table %s is newer than the published run", both.table)
			} else if _, ok := r.pair(both); !ok {
				t.Errorf("%s: %+v is not in the results", peer.name, both)
			}
		}
	}
}
