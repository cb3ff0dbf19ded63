package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

const (
	composeDir     = "../../deploy/compose"
	kubernetesFile = "../../deploy/kubernetes/shop.yaml"
	// ends is how long the program may take from the signal to its end: requests and mechanisms, the
	// store, and traces and metrics.
	ends = shutdownTimeout + time.Second + 2*flushTimeout
)

// decode reads a document into a struct that has all of its fields.
func decode[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&v); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return v
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// span is a duration as text, such as 20s.
type span time.Duration

func (s *span) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	*s = span(d)
	return err
}

// checkImage checks that the version of an image is pinned.
func checkImage(t *testing.T, image string) {
	t.Helper()
	if image != "scratch" && !regexp.MustCompile(`^[a-z0-9./-]+:v?\d+\.\d+(\.\d+)?$`).MatchString(image) {
		t.Errorf("the image %s has no version", image)
	}
}

// checkArguments checks that the program has the flags of a command, and takes its networks and its
// rules, which are read from the text of a file. It returns the configuration.
func checkArguments(t *testing.T, arguments []string, rulesFile string, document []byte) (c config) {
	t.Helper()
	var usage bytes.Buffer
	if code := run([]string{"-h"}, io.Discard, &usage); code != 0 {
		t.Fatalf("-h: exit code %d", code)
	}
	given := map[string]string{}
	for i := 0; i+1 < len(arguments); i += 2 {
		given[arguments[i]] = arguments[i+1]
		if !strings.Contains(usage.String(), "\n  "+arguments[i]+" ") {
			t.Errorf("the program has no flag %s", arguments[i])
		}
	}
	if len(arguments)%2 != 0 || given["-addr"] != ":8080" || given["-rules"] != rulesFile || given["-redis"] == "" {
		t.Errorf("the arguments are %q; want -addr :8080, -rules %s and -redis, and a value of each", arguments, rulesFile)
	}
	if err := c.trust(given["-proxies"]); err != nil {
		t.Errorf("-proxies: %v", err)
	}
	for _, p := range c.proxies {
		if !p.Addr().IsPrivate() {
			t.Errorf("-proxies trusts %v, from which clients may come", p)
		}
	}
	c.rules = filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(c.rules, document, 0o600); err != nil {
		t.Fatal(err)
	}
	return c
}

// serveShop serves a shop in memory that admits one request of each client in a long time.
func serveShop(t *testing.T, c config) *httptest.Server {
	t.Helper()
	st, err := openState(t.Context(), "", "", 0, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.close() })
	c.rate, c.burst, c.lease, c.unpaid = 1, 1, 30*time.Second, time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	handler, _, err := newHandler(ctx, st, http.NotFoundHandler(), c)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

// checkProbe checks that a probe passes, however many there are.
func checkProbe(t *testing.T, server *httptest.Server, path string) {
	t.Helper()
	for range 50 {
		resp, err := server.Client().Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode < 200 || resp.StatusCode > 299 {
			t.Fatalf("the probe %s is answered %d", path, resp.StatusCode)
		}
	}
}

// composition is what our Compose file has of the format.
type composition struct {
	Name     string
	Shop     service `yaml:"x-shop"`
	Services map[string]service
	Volumes  map[string]struct{}
	Networks struct {
		Default struct {
			IPAM struct {
				Config []struct{ Subnet string }
			} `yaml:"ipam"`
		}
	}
}

type service struct {
	Build           *struct{ Context, Dockerfile string }
	Image, Command  string
	Environment     map[string]string
	Volumes, Ports  []string
	DependsOn       any   `yaml:"depends_on"`
	StopGracePeriod *span `yaml:"stop_grace_period"`
	Restart         string
	ReadOnly        bool `yaml:"read_only"`
	Healthcheck     *struct {
		Test              []string
		Interval, Timeout span
		Retries           int
	}
}

func compose(t *testing.T) composition {
	t.Helper()
	return decode[composition](t, readFile(t, filepath.Join(composeDir, "compose.yaml")))
}

// argument returns what follows a flag in a command.
func argument(command, flag string) string {
	fields := strings.Fields(command)
	if i := slices.Index(fields, flag); i >= 0 && i+1 < len(fields) {
		return fields[i+1]
	}
	return ""
}

func TestComposeFile(t *testing.T) {
	t.Parallel()
	c := compose(t)
	for name, s := range c.Services {
		checkImage(t, s.Image)
		if s.Restart == "" {
			t.Errorf("%s does not start again", name)
		}
		for _, volume := range s.Volumes {
			from, _, _ := strings.Cut(volume, ":")
			if _, ok := c.Volumes[from]; ok {
				continue
			}
			if _, err := os.Stat(filepath.Join(composeDir, from)); err != nil || !strings.HasSuffix(volume, ":ro") {
				t.Errorf("%s mounts %s: %v", name, volume, err)
			}
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s is open to the network at %s", name, port)
			}
		}
		var needs []string
		switch on := s.DependsOn.(type) {
		case []any:
			for _, other := range on {
				needs = append(needs, fmt.Sprint(other))
			}
		case map[string]any:
			for other, condition := range on {
				needs = append(needs, other)
				if c.Services[other].Healthcheck == nil || fmt.Sprint(condition) != "map[condition:service_healthy]" {
					t.Errorf("%s waits for %s: %v", name, other, condition)
				}
			}
		}
		for _, other := range needs {
			if _, ok := c.Services[other]; !ok {
				t.Errorf("%s depends on %s, which there is not", name, other)
			}
		}
	}
	for _, name := range []string{"shop-1", "shop-2"} {
		if s := c.Services[name]; s.StopGracePeriod == nil || time.Duration(*s.StopGracePeriod) < ends {
			t.Errorf("%s may be killed before it has ended: that takes up to %v", name, ends)
		}
	}
	if argument(c.Services["postgres"].Command, "postgres") == "" || !strings.Contains(c.Services["postgres"].Command, "idle_in_transaction_session_timeout=") {
		t.Error("a transaction of the shop that is forgotten keeps its rows on PostgreSQL")
	}
}

// The instances take their arguments with either store, trust the proxy's network alone, and follow
// the rules.
func TestComposedShop(t *testing.T) {
	t.Parallel()
	c := compose(t)
	rules := readFile(t, filepath.Join(composeDir, "rules", "rules.yaml"))
	command := c.Services["shop-1"].Command
	before, option, found := strings.Cut(command, "${SHOP_STORE:-")
	option, after, closed := strings.Cut(option, "}")
	if !found || !closed || after != "" {
		t.Fatalf("the command is %q", command)
	}
	cfg := checkArguments(t, strings.Fields(before+option), "/etc/shop/rules.yaml", rules)
	network := netip.MustParsePrefix(c.Networks.Default.IPAM.Config[0].Subnet)
	if !slices.Equal(cfg.proxies, []netip.Prefix{network}) {
		t.Errorf("the shop trusts %v, and the proxy is in %v", cfg.proxies, network)
	}
	if !slices.ContainsFunc(c.Services["shop-1"].Volumes, func(v string) bool { return v == "./rules:/etc/shop:ro" }) {
		t.Error("the directory of the rules is not mounted")
	}
	server := serveShop(t, cfg)
	checkProbe(t, server, "/readyz")
	checkProbe(t, server, "/healthz")
}

// Nothing weakens the promises of Redis with the settings of the Compose file.
func TestComposedRedis(t *testing.T) {
	t.Parallel()
	fields := strings.Fields(compose(t).Services["redis"].Command)
	if len(fields) == 0 || fields[0] != "redis-server" {
		t.Fatalf("the command is %q", fields)
	}
	if limit := argument(strings.Join(fields, " "), "--maxmemory"); limit == "" {
		t.Error("Redis may take all memory of the machine")
	}
	client := redistest.Start(t, fields[1:]...).Client()
	st, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second)) // on a busy machine
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	findings, err := st.Check(t.Context())
	if err != nil || len(findings) > 0 {
		t.Errorf("the store finds %v, %v", findings, err)
	}
}

// The proxy has the instances behind it, tells them the client's address, and sends nothing twice
// that may have run.
func TestComposedProxy(t *testing.T) {
	t.Parallel()
	c := compose(t)
	text := string(readFile(t, filepath.Join(composeDir, "nginx.conf")))
	text = regexp.MustCompile(`#.*`).ReplaceAllString(text, "")
	var behind []string
	for _, match := range regexp.MustCompile(`server (\S+):(\d+)`).FindAllStringSubmatch(text, -1) {
		s, ok := c.Services[match[1]]
		if behind = append(behind, match[1]); !ok || argument(s.Command, "-addr") != ":"+match[2] {
			t.Errorf("%s is no address of a service", match[0])
		}
	}
	if !slices.Equal(behind, []string{"shop-1", "shop-2"}) {
		t.Errorf("behind the proxy are %q", behind)
	}
	for _, directive := range []string{
		"proxy_set_header X-Forwarded-For $remote_addr;", "proxy_next_upstream error timeout;", "proxy_connect_timeout 1s;", "listen 8080;",
	} {
		if !strings.Contains(text, directive) {
			t.Errorf("the proxy lacks %s", directive)
		}
	}
	if strings.Contains(text, "non_idempotent") {
		t.Error("the proxy sends a payment again that may have been made")
	}
	if !slices.Equal(c.Services["proxy"].Ports, []string{"127.0.0.1:8080:8080"}) {
		t.Errorf("the ports of the proxy are %q", c.Services["proxy"].Ports)
	}
}

func TestComposedMetrics(t *testing.T) {
	t.Parallel()
	c := compose(t)
	scraping := decode[struct {
		Global struct {
			Scrape   span `yaml:"scrape_interval"`
			Evaluate span `yaml:"evaluation_interval"`
		}
		Rules  []string `yaml:"rule_files"`
		Scrape []struct {
			Job    string                       `yaml:"job_name"`
			Static []struct{ Targets []string } `yaml:"static_configs"`
		} `yaml:"scrape_configs"`
	}](t, readFile(t, filepath.Join(composeDir, "prometheus.yml")))
	if targets := scraping.Scrape[0].Static[0].Targets; !slices.Equal(targets, []string{"shop-1:8080", "shop-2:8080"}) {
		t.Errorf("Prometheus reads %q", targets)
	}
	for _, file := range scraping.Rules {
		if !slices.Contains(c.Services["prometheus"].Volumes, "../prometheus/"+file+":/etc/prometheus/"+file+":ro") {
			t.Errorf("Prometheus does not get %s", file)
		}
	}
	provisioning := filepath.Join(composeDir, "grafana", "provisioning")
	sources := decode[struct {
		Version int `yaml:"apiVersion"`
		Sources []struct {
			Name, Type, Access, URL string
			Default                 bool `yaml:"isDefault"`
		} `yaml:"datasources"`
	}](t, readFile(t, filepath.Join(provisioning, "datasources", "prometheus.yaml")))
	if len(sources.Sources) != 1 || sources.Sources[0].URL != "http://prometheus:9090" || !sources.Sources[0].Default {
		t.Errorf("Grafana reads %+v", sources)
	}
	dashboards := decode[struct {
		Version   int `yaml:"apiVersion"`
		Providers []struct {
			Name, Type string
			Options    struct{ Path string }
		}
	}](t, readFile(t, filepath.Join(provisioning, "dashboards", "lockkeeper.yaml")))
	if !slices.Contains(c.Services["grafana"].Volumes, "../grafana:"+dashboards.Providers[0].Options.Path+":ro") {
		t.Errorf("Grafana has no dashboards at %s", dashboards.Providers[0].Options.Path)
	}
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	text := string(readFile(t, filepath.Join(composeDir, "Dockerfile")))
	images := regexp.MustCompile(`(?m)^FROM (\S+)`).FindAllStringSubmatch(text, -1)
	if len(images) != 2 {
		t.Errorf("the images are %q", images)
	}
	for _, image := range images {
		checkImage(t, image[1])
	}
	needs := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(readFile(t, "../go.mod"))
	if !strings.HasPrefix(images[0][1], "golang:"+string(needs[1])) {
		t.Errorf("the module needs Go %s, and the image is %s", needs[1], images[0][1])
	}
	for _, line := range []string{"./examples/checkout", "\nUSER 65532:65532\n"} { // Kubernetes wants a number to see that it is not root
		if !strings.Contains(text, line) {
			t.Errorf("the Dockerfile lacks %q", line)
		}
	}
}

// What our manifest has of the formats of Kubernetes.
type (
	// Object is exported, since the decoder sets no other embedded struct.
	Object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   metadata
	}
	metadata struct {
		Name   string
		Labels map[string]string
	}
	configMap struct {
		Object `yaml:",inline"`
		Data   map[string]string
	}
	secret struct {
		Object `yaml:",inline"`
		Data   map[string]string `yaml:"stringData"`
	}
	deployment struct {
		Object `yaml:",inline"`
		Spec   struct {
			Replicas int
			Strategy struct {
				Type          string
				RollingUpdate struct {
					MaxUnavailable int `yaml:"maxUnavailable"`
					MaxSurge       int `yaml:"maxSurge"`
				} `yaml:"rollingUpdate"`
			}
			Selector labels
			Template struct {
				Metadata metadata
				Spec     pod
			}
		}
	}
	labels struct {
		Match map[string]string `yaml:"matchLabels"`
	}
	pod struct {
		GracePeriod int `yaml:"terminationGracePeriodSeconds"`
		Security    struct {
			NonRoot bool `yaml:"runAsNonRoot"`
		} `yaml:"securityContext"`
		Containers []container
		Volumes    []struct {
			Name      string
			ConfigMap struct{ Name string } `yaml:"configMap"`
		}
	}
	container struct {
		Name, Image string
		Args        []string
		Env         []struct {
			Name, Value string
			From        struct {
				Secret struct{ Name, Key string } `yaml:"secretKeyRef"`
			} `yaml:"valueFrom"`
		}
		Ports []struct {
			Name string
			Port int `yaml:"containerPort"`
		}
		Lifecycle struct {
			PreStop struct{ Sleep struct{ Seconds int } } `yaml:"preStop"`
		}
		Readiness probe `yaml:"readinessProbe"`
		Liveness  probe `yaml:"livenessProbe"`
		Resources struct{ Requests, Limits map[string]string }
		Security  struct {
			Escalation bool `yaml:"allowPrivilegeEscalation"`
			ReadOnly   bool `yaml:"readOnlyRootFilesystem"`
		} `yaml:"securityContext"`
		Mounts []struct {
			Name     string
			Path     string `yaml:"mountPath"`
			ReadOnly bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
	}
	probe struct {
		Get      struct{ Path, Port string } `yaml:"httpGet"`
		Period   int                         `yaml:"periodSeconds"`
		Timeout  int                         `yaml:"timeoutSeconds"`
		Failures int                         `yaml:"failureThreshold"`
	}
	kubernetesService struct {
		Object `yaml:",inline"`
		Spec   struct {
			Selector map[string]string
			Ports    []struct {
				Name   string
				Port   int
				Target string `yaml:"targetPort"`
			}
		}
	}
	disruptionBudget struct {
		Object `yaml:",inline"`
		Spec   struct {
			Available int `yaml:"minAvailable"`
			Selector  labels
		}
	}
)

// manifest returns the documents of the manifest by kind and version.
func manifest(t *testing.T) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for text := range bytes.SplitSeq(readFile(t, kubernetesFile), []byte("\n---\n")) {
		var o Object
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		all[o.APIVersion+" "+o.Kind] = text
	}
	return all
}

func TestKubernetesManifest(t *testing.T) {
	t.Parallel()
	all := manifest(t)
	if len(all) != 5 {
		t.Fatalf("there are %d kinds", len(all))
	}
	d := decode[deployment](t, all["apps/v1 Deployment"])
	rules := decode[configMap](t, all["v1 ConfigMap"])
	store := decode[secret](t, all["v1 Secret"])
	front := decode[kubernetesService](t, all["v1 Service"])
	budget := decode[disruptionBudget](t, all["policy/v1 PodDisruptionBudget"])
	template := d.Spec.Template
	for what, selector := range map[string]map[string]string{
		"Deployment": d.Spec.Selector.Match, "Service": front.Spec.Selector, "PodDisruptionBudget": budget.Spec.Selector.Match,
	} {
		if selector["app"] == "" || selector["app"] != template.Metadata.Labels["app"] {
			t.Errorf("the %s selects %v, and pods have %v", what, selector, template.Metadata.Labels)
		}
	}
	if d.Spec.Replicas < 2 || d.Spec.Strategy.RollingUpdate.MaxUnavailable != 0 || d.Spec.Strategy.RollingUpdate.MaxSurge < 1 ||
		budget.Spec.Available < 1 || budget.Spec.Available >= d.Spec.Replicas {
		t.Errorf("no instance may be left in a rollout, or none may be moved: %+v, %+v", d.Spec.Strategy, budget.Spec)
	}

	p, c := template.Spec, template.Spec.Containers[0]
	if least := time.Duration(c.Lifecycle.PreStop.Sleep.Seconds)*time.Second + ends; time.Duration(p.GracePeriod)*time.Second <= least {
		t.Errorf("the pod may be killed after %d s, before it has ended: that takes up to %v", p.GracePeriod, least)
	}
	if taken := c.Readiness.Period*c.Readiness.Failures + c.Readiness.Timeout; c.Lifecycle.PreStop.Sleep.Seconds < taken {
		t.Errorf("a balancer that asks the pod itself needs %d s to see that it ends", taken)
	}
	checkImage(t, c.Image)
	if c.Env[0].From.Secret.Name != store.Metadata.Name || store.Data[c.Env[0].From.Secret.Key] == "" || !slices.Contains(c.Args, "$("+c.Env[0].Name+")") {
		t.Errorf("the address of the store is not in the secret: %+v", c.Env)
	}
	if p.Volumes[0].ConfigMap.Name != rules.Metadata.Name || c.Mounts[0].Name != p.Volumes[0].Name || c.Mounts[0].Path != "/etc/shop" {
		t.Errorf("the rules are not mounted: %+v, %+v", p.Volumes, c.Mounts)
	}
	if _, limited := c.Resources.Limits["cpu"]; limited || c.Resources.Limits["memory"] == "" || c.Resources.Requests["cpu"] == "" {
		t.Errorf("the resources are %+v", c.Resources)
	}
	if !p.Security.NonRoot || c.Security.Escalation || !c.Security.ReadOnly {
		t.Error("the pod may do more than it needs")
	}
	if c.Ports[0].Port != 8080 || front.Spec.Ports[0].Target != c.Ports[0].Name || c.Readiness.Get.Port != c.Ports[0].Name || c.Liveness.Get.Port != c.Ports[0].Name {
		t.Errorf("the ports differ: %+v, %+v", c.Ports, front.Spec.Ports)
	}
	server := serveShop(t, checkArguments(t, c.Args, "/etc/shop/rules.yaml", []byte(rules.Data["rules.yaml"])))
	checkProbe(t, server, c.Readiness.Get.Path)
	checkProbe(t, server, c.Liveness.Get.Path)
}
