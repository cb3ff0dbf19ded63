package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func options(t *testing.T) Options {
	return Options{Setting: Tiny, Rounds: 3, Out: t.TempDir(), Log: io.Discard, Command: "go run ./cmd/compare"}
}

// section runs f as a section, and returns the directory of the report.
func section(t *testing.T, f func(ctx context.Context, b *B) error) (dir string, err error) {
	t.Helper()
	o := options(t)
	return o.Out, Run(context.Background(), o, some(f))
}

// some is a section with targets.
func some(f func(ctx context.Context, b *B) error) []Section {
	return []Section{{Name: "some", Title: "Some section: one", About: "About it.", Run: f, Targets: []Target{
		{What: "speed", Bound: 15, Better: More, Unit: "1/s"},
		{What: "cost", Bound: 2, Better: Less, Unit: "x", Floor: "a | b: 1; × 2"},
		{What: "not measured", Bound: 1, Better: Less},
	}}}
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestInterleaveRunsEachOncePerRoundInNewOrders(t *testing.T) {
	const contenders = 8
	var order []int
	_, err := section(t, func(ctx context.Context, b *B) error {
		b.rounds = 20
		var all []Contender
		for i := range contenders {
			all = append(all, Contender{Row: fmt.Sprint(i), Run: func(context.Context) error {
				order = append(order, i)
				return nil
			}})
		}
		return b.Interleave(ctx, "something", all)
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for round := range slices.Chunk(order, contenders) {
		seen[fmt.Sprint(round)] = true
		if sorted := slices.Sorted(slices.Values(round)); !slices.Equal(sorted, []int{0, 1, 2, 3, 4, 5, 6, 7}) {
			t.Errorf("a round ran %v", round)
		}
	}
	if len(order) != 20*contenders || len(seen) < 15 {
		t.Errorf("%d runs in %d orders, want %d in about 20", len(order), len(seen), 20*contenders)
	}
}

func TestInterleaveFinelyDividesRounds(t *testing.T) {
	const parts = 5
	runs := 0
	_, err := section(t, func(ctx context.Context, b *B) error {
		b.setting, b.rounds = Full, 3
		whole := b.Time(time.Second)
		table := b.Table("some", "Some", "", Column{Name: "rate"}, Column{Name: "all"})
		table.Add("a", "rate", 100)
		err := b.InterleaveFinely(ctx, "something", parts, []Contender{{Row: "a", Run: func(context.Context) error {
			table.Add("a", "rate", float64(runs))
			runs++
			if part := b.Time(time.Second); part != whole/parts {
				t.Errorf("a part takes %v, a round %v", part, whole)
			}
			return nil
		}}})
		table.Add("a", "all", 7)
		for column, want := range map[string][]float64{"rate": {2, 7, 12, 100}, "all": {7}} { // the means of 0 to 4, 5 to 9, ...
			if got := table.sorted("a", column); !slices.Equal(got, want) {
				t.Errorf("%s: %v, want %v", column, got, want)
			}
		}
		if again := b.Time(time.Second); again != whole {
			t.Errorf("after it, a round takes %v, not %v", again, whole)
		}
		return err
	})
	if err != nil || runs != 3*parts {
		t.Errorf("%d runs, %v", runs, err)
	}
}

func TestInterleaveEndsWithAnError(t *testing.T) {
	broken := errors.New("broken")
	runs := 0
	dir, err := section(t, func(ctx context.Context, b *B) error {
		return b.Interleave(ctx, "something", []Contender{{Row: "a", Run: func(context.Context) error {
			runs++
			return broken
		}}})
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "something: a: broken") || runs != 1 {
		t.Errorf("after %d runs: %v", runs, err)
	}
	if text := read(t, dir, "RESULTS.md"); !strings.Contains(text, "The section ended early") {
		t.Errorf("the report does not say so:\n%s", text)
	}
}

func TestInterleaveEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	runs := 0
	err := Run(ctx, options(t), []Section{{Name: "one", Run: func(ctx context.Context, b *B) error {
		return b.Interleave(ctx, "something", []Contender{{Row: "a", Run: func(context.Context) error {
			runs++
			cancel()
			return nil
		}}})
	}}, {Name: "two", Run: func(context.Context, *B) error {
		t.Error("another section began")
		return nil
	}}})
	if !errors.Is(err, context.Canceled) || runs != 1 {
		t.Errorf("after %d runs: %v", runs, err)
	}
}

func TestOtherSectionsRunAfterAnError(t *testing.T) {
	broken := errors.New("broken")
	ran := false
	err := Run(context.Background(), options(t), []Section{
		{Name: "one", Run: func(context.Context, *B) error { return broken }},
		{Name: "two", Run: func(context.Context, *B) error { ran = true; return nil }},
	})
	if !errors.Is(err, broken) || !ran {
		t.Errorf("the second ran: %v; %v", ran, err)
	}
}

func TestReport(t *testing.T) {
	dir, err := section(t, func(ctx context.Context, b *B) error {
		table := b.Table("speed", "Speed of things", "A note.",
			Column{Name: "rate", Unit: "1/s", Better: More}, Column{Name: "cost", Better: Less, Format: "%.1f"}, Column{Name: "size"})
		table.Chart("A chart of things", "rate", "cost")
		table.Reference("the floor")
		samples := map[string][]float64{"Lockkeeper": {30, 10, 20}, "peer | one": {15, 16, 14}, "the floor": {99, 99, 99}}
		round := make(map[string]int)
		var all []Contender
		for _, row := range []string{"peer | one", "Lockkeeper", "the floor"} {
			all = append(all, Contender{Row: row, Run: func(context.Context) error {
				table.Add(row, "rate", samples[row][round[row]])
				table.Add(row, "cost", 10/samples[row][round[row]])
				round[row]++
				return nil
			}})
		}
		if err := b.Interleave(ctx, "things", all); err != nil {
			return err
		}
		v, ok := table.Median("Lockkeeper", "rate")
		if v != 20 || !ok {
			t.Errorf("median %v, %v", v, ok)
		}
		table.Add("Lockkeeper", "size", math.NaN())
		table.Add("Lockkeeper", "size", math.Inf(1))
		if _, ok := table.Median("Lockkeeper", "size"); ok {
			t.Error("a cell of which nothing was measured has a median")
		}
		b.Measured("speed", v)
		b.Measured("cost", 3)
		b.Measured("not measured", math.NaN())
		b.Note("A remark.")
		b.Note("A remark.")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, dir, "RESULTS.md")
	for _, want := range []string{
		"These figures mean nothing",
		"- [Some section: one](#some-section-one)\n- [Versions](#versions)\n- [Targets](#targets)\n",
		"| | bound | this run | | floor, and factor |\n|---|---|---|---|---|\n" +
			"| speed | ≥ 15 1/s | 20.0 | reached |  |\n" +
			"| cost | ≤ 2 x | *3.00* | **not reached** | a \\| b: 1; × 2 |\n" +
			"| not measured | ≤ 1 | – | not measured |  |\n",
		"## Some section: one\n\nAbout it.\n\n### Speed of things\n\nA note.\n\n",
		"| | rate, 1/s | cost | size |\n|---|---|---|---|\n" +
			"| peer \\| one | 15.0 (14.0–16.0) | 0.7 (0.6–0.7) | – |\n" +
			"| Lockkeeper | **20.0** (10.0–30.0) | **0.5** (0.3–1.0) | – |\n" +
			"| *the floor* | 99.0 | 0.1 | – |\n",
		"![A chart of things](charts/speed.svg)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "- A remark.\n"); n != 1 {
		t.Errorf("the remark is there %d times", n)
	}

	var results report
	if err := json.Unmarshal([]byte(read(t, dir, "results.json")), &results); err != nil {
		t.Fatal(err)
	}
	if s := results.Sections[0].Tables[0].Rows[1].Samples["rate"]; !slices.Equal(s, []float64{30, 10, 20}) {
		t.Errorf("results.json has the samples %v", s)
	}
	_, targets, _ := strings.Cut(text, "## Targets")
	if !strings.Contains(targets, "| speed |") || strings.Count(text, "\n## ") != 4 {
		t.Errorf("the targets are not at the end:\n%s", text)
	}
	if results.Sections[0].Targets[2].Value != nil {
		t.Error("results.json has a value that was not measured")
	}

	svg := read(t, dir, "charts/speed.svg")
	for _, want := range []string{`class="ours"`, `class="peer"`, `class="reference"`, "prefers-color-scheme: dark", ">20.0</text>"} {
		if !strings.Contains(svg, want) {
			t.Errorf("the chart lacks %q", want)
		}
	}
}

func TestTableRefusesUnknownColumns(t *testing.T) {
	b := B{}
	table := b.Table("id", "title", "", Column{Name: "known"})
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	table.Add("row", "unknown", 1)
}

func TestTableIsSafeForConcurrentUse(t *testing.T) {
	b := B{}
	table := b.Table("id", "title", "", Column{Name: "c"})
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for range 100 {
				table.Add(fmt.Sprint("row ", i%2), "c", 1)
				table.Median("row 0", "c")
			}
		})
	}
	running.Wait()
	if n := len(table.sorted("row 0", "c")) + len(table.sorted("row 1", "c")); n != 800 {
		t.Errorf("%d samples of 800", n)
	}
}

func TestVerdict(t *testing.T) {
	for _, c := range []struct {
		bound  float64
		better Better
		value  float64
		want   string
	}{
		{4, More, 4, "reached"},
		{4, More, 3.9, "not reached"},
		{0, Less, 0, "reached"},
		{0, Less, 0.1, "not reached"},
		{500, Less, 500, "reached"},
		{500, Less, 501, "not reached"},
		{500, Less, math.NaN(), "not measured"},
	} {
		if got := (Target{Bound: c.bound, Better: c.better}).verdict(c.value); got != c.want {
			t.Errorf("%+v: %s, want %s", c, got, c.want)
		}
	}
}

// Runs that are published on several machines are judged by their median, without values from before
// a change; another run is judged alone.
func TestTargetsAreJudgedByTheMedianOfMachines(t *testing.T) {
	o := options(t)
	run := func(machine string, speed, cost float64) {
		t.Helper()
		o.Machine = machine
		if err := Run(context.Background(), o, some(func(_ context.Context, b *B) error {
			b.Measured("speed", speed)
			b.Measured("cost", cost)
			return nil
		})); err != nil {
			t.Fatal(err)
		}
	}
	lacks := func(wants ...string) {
		t.Helper()
		text := read(t, o.Out, pageFile)
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("the report lacks %q:\n%s", want, text)
			}
		}
	}
	run("A", 1, 1)
	run("B", 16, 2.5)
	run("C", 20, 9)
	run("A", 14, 1.5) // instead of the first run on it
	lacks("| | bound | A | B | C | median | | floor, and factor |\n",
		"| speed | ≥ 15 1/s | *14.0* | 16.0 | 20.0 | 16.0 | reached |  |\n",
		"| cost | ≤ 2 x | 1.50 | *2.50* | *9.00* | 2.50 | **not reached** | ")

	machines, err := readMachines(o.Out)
	if err != nil {
		t.Fatal(err)
	}
	machines[2].Older = map[string]string{"cost": "a change"}
	data, err := json.Marshal(machines)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(o.Out, machinesFile), data, 0o644); err != nil {
		t.Fatal(err)
	}
	o.Machine = ""
	if err := Render(o, some(nil)); err != nil {
		t.Fatal(err)
	}
	lacks("| cost | ≤ 2 x | 1.50 | *2.50* | (9.00) | 2.00 | reached | ")

	run("", 14, 1)
	lacks("This run is not among them, and is judged alone.",
		"| | bound | this run | A | B | C | | floor, and factor |\n",
		"| speed | ≥ 15 1/s | *14.0* | *14.0* | 16.0 | 20.0 | **not reached** |  |\n")
}

// A run that adds its sections keeps the others, also in the published run of its machine.
func TestAdd(t *testing.T) {
	o := options(t)
	o.Machine, o.Command = "A", "go run ./all"
	named := func(name string, speed float64) Section {
		s := some(func(_ context.Context, b *B) error {
			b.Measured(name, speed)
			return nil
		})[0]
		s.Name, s.Title, s.Targets = name, name, []Target{{What: name, Bound: 15, Better: More}}
		return s
	}
	run := func(sections ...Section) error { return Run(context.Background(), o, sections) }
	if err := run(named("tokens", 16), named("locks", 17)); err != nil {
		t.Fatal(err)
	}
	o.Add, o.Command = true, "go run ./some"
	if err := run(named("locks", 18), named("delay", 19)); err != nil {
		t.Fatal(err)
	}
	text := read(t, o.Out, pageFile)
	for _, want := range []string{
		"by `go run ./all`, in", "| tokens | ≥ 15 | 16.0 | 16.0 | reached |", "| locks | ≥ 15 | 18.0 | 18.0 | reached |",
		"| delay | ≥ 15 | 19.0 | 19.0 | reached |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if n := strings.Count(text, "by `go run ./some`, on a machine with the processor "); n != 2 {
		t.Errorf("%d sections are of the second run, want 2:\n%s", n, text)
	}
	o.Rounds = 1
	if err := run(named("locks", 1)); err == nil {
		t.Error("a section of one round was added to a report of three")
	}
	o.Rounds, o.Out = 3, t.TempDir()
	if err := run(named("locks", 1)); err == nil {
		t.Error("a section was added to no report")
	}
}

// A report that is rendered is the one that was measured, with the targets of now.
func TestRender(t *testing.T) {
	o := options(t)
	sections := some(func(ctx context.Context, b *B) error {
		table := b.Table("speed", "Speed", "", Column{Name: "rate", Better: More, Format: "%.1f"})
		table.Chart("A chart", "rate")
		b.Measured("speed", 15)
		return b.Interleave(ctx, "things", []Contender{{Row: "a", Run: func(context.Context) error {
			table.Add("a", "rate", 1.23)
			return nil
		}}, {Row: "b", Run: func(context.Context) error {
			table.Add("b", "rate", 3.21)
			return nil
		}}})
	})
	if err := Run(context.Background(), o, sections); err != nil {
		t.Fatal(err)
	}
	files := []string{pageFile, resultsFile, "charts/speed.svg"}
	before := make(map[string]string)
	for _, name := range files {
		before[name] = read(t, o.Out, name)
	}
	if err := Render(o, sections); err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		if after := read(t, o.Out, name); after != before[name] {
			t.Errorf("%s was\n%s\nand is\n%s", name, before[name], after)
		}
	}
	sections[0].Targets[0].Bound = 16
	if err := Render(o, sections); err != nil {
		t.Fatal(err)
	}
	if text := read(t, o.Out, pageFile); !strings.Contains(text, "| speed | ≥ 16 1/s | *15.0* | **not reached** |") {
		t.Errorf("the bound is not the one of now:\n%s", text)
	}
	sections[0].Targets = sections[0].Targets[1:]
	if err := Render(o, sections); err == nil {
		t.Error("a result without a target was rendered")
	}
}

func TestMeasuredRefusesUnknownTargets(t *testing.T) {
	b := B{section: some(nil)[0]}
	b.Measured("speed", 1)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	b.Measured("unknown", 1)
}

// A round in which the machine was slower does not change a ratio of pairs.
func TestPairedRatio(t *testing.T) {
	b := B{}
	table := b.Table("id", "title", "", Column{Name: "c"})
	for _, v := range []float64{70, 130, 180} {
		table.Add("ours", "c", v)
	}
	for _, v := range []float64{100, 100, 200} {
		table.Add("theirs", "c", v)
	}
	table.Add("once", "c", 1)
	if got := table.PairedRatio("c", "ours", "theirs"); got != 0.9 {
		t.Errorf("%v, want 0.9", got)
	}
	for _, row := range []string{"once", "never"} {
		if got := table.PairedRatio("c", row, "theirs"); !math.IsNaN(got) {
			t.Errorf("%s: %v without a pair in each round", row, got)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		sorted []float64
		want   float64
	}{{[]float64{7}, 7}, {[]float64{1, 2}, 1.5}, {[]float64{1, 5, 100}, 5}, {[]float64{1, 2, 4, 100}, 3}} {
		if got := median(c.sorted); got != c.want {
			t.Errorf("median of %v: %v, want %v", c.sorted, got, c.want)
		}
	}
}

func TestSignificant(t *testing.T) {
	for v, want := range map[float64]string{0: "0", 0.01234: "0.0123", 1.234: "1.23", 12.34: "12.3", 999.9: "1000", 12345: "12345"} {
		if got := significant(v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
}

func TestSettings(t *testing.T) {
	if got := Quick.time(1600 * time.Millisecond); got != 100*time.Millisecond {
		t.Errorf("quick: %v", got)
	}
	if got := Tiny.time(time.Millisecond); got != shortest {
		t.Errorf("tiny: %v", got)
	}
	if got := Full.count(10); got != 10 {
		t.Errorf("full: %d", got)
	}
	if got := Tiny.count(10); got != 1 {
		t.Errorf("tiny: %d", got)
	}
}

func TestLoad(t *testing.T) {
	const workers = 4
	broken := errors.New("broken")
	var calls [workers]atomic.Int64
	r := Load(context.Background(), workers, 20*time.Millisecond, func(_ context.Context, worker, i int) error {
		if n := calls[worker].Add(1) - 1; int(n) != i {
			t.Errorf("worker %d gets %d as its call %d", worker, i, n)
		}
		<-time.After(time.Millisecond)
		if i%2 == 1 {
			return broken
		}
		return nil
	})
	total := int64(0)
	for i := range calls {
		total += calls[i].Load()
	}
	if r.Ops+r.Errors != total || r.Ops == 0 || r.Errors == 0 || !errors.Is(r.Err, broken) {
		t.Errorf("of %d calls: %+v", total, r)
	}
	if r.Elapsed < 20*time.Millisecond || r.P50 < time.Millisecond || r.P99 < r.P50 {
		t.Errorf("%+v", r)
	}
	if want := float64(r.Ops) / r.Elapsed.Seconds(); math.Abs(r.PerSecond-want) > 1e-6*want {
		t.Errorf("%v a second, want %v", r.PerSecond, want)
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	Load(ctx, 2, time.Hour, func(context.Context, int, int) error {
		cancel()
		return nil
	})
}

func TestLoadCountsAllocations(t *testing.T) {
	sinks := make([]*[64]byte, 2)
	r := Load(context.Background(), len(sinks), 20*time.Millisecond, func(_ context.Context, worker, _ int) error {
		for range 3 {
			sinks[worker] = new([64]byte)
		}
		return nil
	})
	if r.AllocsPerOp < 2.9 || r.AllocsPerOp > 3.5 {
		t.Errorf("%v allocations, want about 3", r.AllocsPerOp)
	}
}

func TestSpin(t *testing.T) {
	var calls [2]int64
	r := Spin(context.Background(), 2, 10*time.Millisecond, func(worker, i int) error {
		if int64(i) != calls[worker] {
			t.Errorf("got %d as call %d", i, calls[worker])
		}
		calls[worker]++
		return nil
	})
	if r.Calls != calls[0]+calls[1] || r.NsPerCall <= 0 || r.AllocsPerOp > 0.1 || r.Err != nil {
		t.Errorf("%+v after %v calls", r, calls)
	}
	broken := errors.New("broken")
	if r := Spin(context.Background(), 1, time.Hour, func(_, i int) error {
		if i == 5 {
			return broken
		}
		return nil
	}); !errors.Is(r.Err, broken) || r.Calls != 5 {
		t.Errorf("%+v", r)
	}
}

func TestHistogram(t *testing.T) {
	var h histogram
	for i := 1; i <= 100_000; i++ {
		h.add(time.Duration(i) * time.Microsecond)
	}
	for q, want := range map[float64]time.Duration{0.50: 50 * time.Millisecond, 0.99: 99 * time.Millisecond} {
		if got := h.quantile(q); math.Abs(float64(got-want)) > 0.02*float64(want) {
			t.Errorf("quantile %v: %v, want %v to 2 %%", q, got, want)
		}
	}
	if h.count() != 100_000 {
		t.Errorf("%d", h.count())
	}
	for _, d := range []time.Duration{0, 1, 63, 64, 65, 1000, math.MaxInt64} {
		if got := middle(bucket(d)); math.Abs(float64(got-d)) > 0.02*float64(d) {
			t.Errorf("%d ns becomes %d ns", d, got)
		}
	}
	if (&histogram{}).quantile(0.5) != 0 {
		t.Error("an empty histogram has a quantile")
	}
}

func TestPickReachesAll(t *testing.T) {
	seen := make(map[int]int)
	for i := range 10_000 {
		n := Pick(3, i, 10)
		seen[n]++
		if n != Pick(3, i, 10) {
			t.Fatal("two answers")
		}
	}
	for n := range 10 {
		if seen[n] < 800 || seen[n] > 1200 {
			t.Errorf("%d was picked %d times of 10000", n, seen[n])
		}
	}
}

func TestScale(t *testing.T) {
	linear := []bar{{row: "a", median: 10, least: 5, greatest: 11}, {row: "b", median: 20, least: 20, greatest: 9000}, {row: "floor", median: 0.1, reference: true}}
	length, remark := scale(linear)
	if a, b := length(10), length(20); remark != "" || math.Abs(2*a-b) > 1e-9 {
		t.Errorf("%q: 10 is %v long, and 20 is %v", remark, a, b)
	}
	if edge := length(9000); edge > chartWidth-labelWidth-valueWidth {
		t.Errorf("an outlier is %v long", edge)
	}
	length, remark = scale([]bar{{median: 1, greatest: 1}, {median: 10, greatest: 10}, {median: 100, greatest: 100}})
	if one, ten, hundred := length(1), length(10), length(100); remark != "logarithmic" || one <= 0 || math.Abs((hundred-ten)-(ten-one)) > 1e-9 {
		t.Errorf("%q: %v, %v, %v", remark, one, ten, hundred)
	}
	if length, _ := scale([]bar{{}}); length(0) != 0 {
		t.Error("nothing has a length")
	}
}

func TestPercentile(t *testing.T) {
	for _, test := range []struct {
		values []int64
		p      float64
		want   float64
	}{
		{[]int64{3, 1, 2}, 0.5, 2},
		{[]int64{3, 1, 2, 4}, 0.5, 2},
		{[]int64{3, 1, 2}, 0.99, 3},
		{[]int64{7}, 0.5, 7},
	} {
		if got := Percentile(test.values, test.p); got != test.want {
			t.Errorf("percentile %v of %v is %v, want %v", test.p, test.values, got, test.want)
		}
	}
	if !math.IsNaN(Percentile([]int64(nil), 0.5)) {
		t.Error("there is a percentile of nothing")
	}
}
