package observability_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

const (
	alertsPath    = "../../../deploy/prometheus/alerts.yml"
	dashboardPath = "../../../deploy/grafana/lockkeeper.json"
)

// scraped is the time series that Prometheus would scrape: for each name, the values of its labels.
type scraped map[string]map[string]set

// scrape reads a registry. Histograms have their three names in queries.
func scrape(t *testing.T, registry *prometheus.Registry) scraped {
	s := make(scraped)
	for _, family := range must(registry.Gather()) {
		names := []string{family.GetName()}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			names = []string{family.GetName() + "_bucket", family.GetName() + "_sum", family.GetName() + "_count"}
		}
		for i, name := range names {
			labels := map[string]set{"job": nil, "instance": nil} // which Prometheus adds
			if len(names) == 3 && i == 0 {
				labels["le"] = nil
			}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if labels[l.GetName()] == nil {
						labels[l.GetName()] = make(set)
					}
					labels[l.GetName()][l.GetValue()] = true
				}
			}
			s[name] = labels
		}
	}
	if len(s) < 20 {
		t.Fatalf("only %d names are scraped", len(s))
	}
	return s
}

// What a query is made of, as far as is needed to find the names in it. It is no parser of PromQL.
var (
	variables = regexp.MustCompile(`\[\$__rate_interval\]|\boffset \$__rate_interval\b`)
	grouping  = regexp.MustCompile(`\b(by|without)\s*\(([^)]*)\)`)
	selector  = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)\s*(\{[^}]*\})?`)
	matcher   = regexp.MustCompile(`^\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*$`)
	duration  = regexp.MustCompile(`\[[0-9]+[smhd]\]|\boffset [0-9]+[smhd]\b`)
)

var functions = []string{"sum", "max", "rate", "increase", "last_over_time", "histogram_quantile", "and", "or", "unless"}

// check checks that the metrics and labels of a query exist.
func (s scraped) check(t *testing.T, where, query string) (names []string) {
	t.Helper()
	text := duration.ReplaceAllString(variables.ReplaceAllString(query, ""), "")
	var grouped []string
	for _, m := range grouping.FindAllStringSubmatch(text, -1) {
		for label := range strings.SplitSeq(m[2], ",") {
			grouped = append(grouped, strings.TrimSpace(label))
		}
	}
	text = grouping.ReplaceAllString(text, "")
	for _, m := range selector.FindAllStringSubmatch(text, -1) {
		name, matchers := m[1], m[2]
		if slices.Contains(functions, name) {
			continue
		}
		labels, ok := s[name]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, name)
			continue
		}
		names = append(names, name)
		for text := range strings.SplitSeq(strings.Trim(matchers, "{}"), ",") {
			if text != "" {
				checkMatcher(t, where+": "+name, text, labels)
			}
		}
	}
	if len(names) == 0 {
		t.Errorf("%s: %q names no metric", where, query)
	}
	for _, label := range grouped {
		for _, name := range names {
			if _, ok := s[name][label]; !ok && label != "le" {
				t.Errorf("%s: %s has no label %s to group by", where, name, label)
			}
		}
		if label == "le" && !strings.Contains(query, "_bucket") {
			t.Errorf("%s: only buckets have le", where)
		}
	}
	if strings.Contains(query, "histogram_quantile") && !slices.Contains(grouped, "le") {
		t.Errorf("%s: a quantile without le", where)
	}
	return names
}

// hasLabel reports whether a query for the values of a label names an existing one.
func (s scraped) hasLabel(query string) bool {
	for _, labels := range s {
		for label := range labels {
			if strings.HasSuffix(query, ", "+label+")") {
				return true
			}
		}
	}
	return false
}

func checkMatcher(t *testing.T, where, text string, labels map[string]set) {
	t.Helper()
	m := matcher.FindStringSubmatch(text)
	if m == nil {
		t.Errorf("%s: %q is no matcher", where, text)
		return
	}
	values, ok := labels[m[1]]
	if !ok {
		t.Errorf("%s: there is no label %s", where, m[1])
		return
	}
	if strings.HasPrefix(m[3], "$") || m[3] == "" { // a variable, or: no such label
		return
	}
	alternatives := []string{m[3]}
	if strings.HasSuffix(m[2], "~") {
		alternatives = strings.Split(m[3], "|")
	}
	for _, value := range alternatives {
		if !values[value] {
			t.Errorf("%s: %s is never %q, it is one of %v", where, m[1], value, values.sorted())
		}
	}
}

// checkAlerts checks the rules for Prometheus, which are those of the document.
func (w *world) checkAlerts(t *testing.T) {
	var rules struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	text := must(os.ReadFile(alertsPath))
	ok(t, yaml.UnmarshalWithOptions(text, &rules, yaml.Strict()))
	var documented, found []string
	for _, row := range readTable(t, "Alert") {
		documented = append(documented, words(row["Alert"])[0])
	}
	s := scrape(t, w.registry)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			found = append(found, rule.Alert)
			s.check(t, rule.Alert, rule.Expr)
			if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" {
				t.Errorf("%s has no severity, or no summary", rule.Alert)
			}
			checkTemplates(t, rule.Alert, strings.Join([]string{rule.Annotations["summary"], rule.Annotations["description"]}, " "), rule.Expr)
		}
	}
	if !slices.Equal(documented, found) {
		t.Errorf("the alerts are %v, and documented are %v", found, documented)
	}
}

var label = regexp.MustCompile(`\$labels\.([a-z_]+)`)

// checkTemplates checks that a text has only labels that its query groups by.
func checkTemplates(t *testing.T, where, text, query string) {
	t.Helper()
	for _, m := range label.FindAllStringSubmatch(text, -1) {
		for _, by := range grouping.FindAllStringSubmatch(query, -1) {
			if labels := strings.Split(strings.ReplaceAll(by[2], " ", ""), ","); !slices.Contains(labels, m[1]) {
				t.Errorf("%s: %s is none of %v", where, m[1], labels)
			}
		}
	}
}

// checkDashboard checks the dashboard, which shows every metric.
func (w *world) checkDashboard(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Name, Type, Definition string }
		}
	}
	ok(t, json.Unmarshal(must(os.ReadFile(dashboardPath)), &dashboard))
	s := scrape(t, w.registry)
	for _, variable := range dashboard.Templating.List {
		if variable.Type == "query" && !s.hasLabel(variable.Definition) {
			t.Errorf("the variable %s has no label of a metric: %s", variable.Name, variable.Definition)
		}
	}
	shown := make(set)
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("%s shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			for _, name := range s.check(t, panel.Title, target.Expr) {
				shown[name] = true
			}
			checkTemplates(t, panel.Title, strings.NewReplacer("{{", "$labels.", "}}", "").Replace(target.LegendFormat), target.Expr)
		}
	}
	for name := range s {
		base := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if strings.HasPrefix(name, "lockkeeper_") && !shown[name] && !shown[base+"_bucket"] && !shown[base+"_count"] {
			t.Errorf("no panel shows %s", name)
		}
	}
}
