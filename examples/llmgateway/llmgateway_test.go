package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo/demotest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience of tests with what should happen at once.
const soon = 20 * time.Second

// fixture is a gateway, and a model that takes a step when the test says so.
type fixture struct {
	*testing.T
	url    string
	client *http.Client
	model  *model
	steps  chan struct{} // one for each piece of an answer; closed for all of them
}

// plan is of limits whose tokens do not come back while a test runs.
func plan(requests, tokens int64) tokenbucket.Plan {
	const forever = 3650 * 24 * time.Hour
	return tokenbucket.Limits{
		tokenbucket.Per(requests, forever).Named("requests"),
		tokenbucket.Per(tokens, forever).Named("tokens"),
	}
}

func start(t *testing.T, plan tokenbucket.Plan) *fixture {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return startOn(t, st, plan)
}

func startOn(t *testing.T, st store.Store, plan tokenbucket.Plan) *fixture {
	t.Helper()
	steps := make(chan struct{})
	model, err := startModel(func(ctx context.Context) error {
		select {
		case <-steps:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	outgoing := &http.Client{Transport: &http.Transport{}}
	handler, err := newGateway(st, outgoing, model.url, plan)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(func() {
		server.Close()
		model.stop()
		outgoing.CloseIdleConnections()
	})
	client := server.Client()
	client.Timeout = soon
	return &fixture{t, server.URL, client, model, steps}
}

// step lets the model send a piece of an answer.
func (f *fixture) step() {
	f.Helper()
	select {
	case f.steps <- struct{}{}:
	case <-time.After(soon):
		f.Fatal("the model does not answer")
	}
}

func (f *fixture) send(ctx context.Context, method, path, body string, header ...string) *http.Response {
	f.Helper()
	req, err := http.NewRequestWithContext(ctx, method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer key-of-search")
	for n := 0; n < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// asks asks a question of 500 tokens, for an answer of 1,500 at most.
func (f *fixture) ask(ctx context.Context, model string) *http.Response {
	f.Helper()
	return f.send(ctx, http.MethodPost, "/v1/chat/completions", long(model), "X-Request-Id", "the-answer")
}

func long(model string) string {
	body, _ := json.Marshal(question{Model: model, Prompt: strings.Repeat("word", 500), MaxTokens: 1500})
	return string(body)
}

func (f *fixture) body(resp *http.Response) string {
	f.Helper()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatal(err)
	}
	return string(body)
}

func (f *fixture) json(path string, v any) {
	f.Helper()
	resp := f.send(f.Context(), http.MethodGet, path, "")
	if body := f.body(resp); resp.StatusCode != http.StatusOK || json.Unmarshal([]byte(body), v) != nil {
		f.Fatalf("%s: %d %s", path, resp.StatusCode, body)
	}
}

// stand checks what is used, and what is reserved, of requests and tokens.
func (f *fixture) stand(requests, requestsReserved, tokens, tokensReserved int64) {
	f.Helper()
	var b []budget
	f.json("/demo/budgets", &b)
	if len(b) != 2 || b[0].Used != requests || b[0].Reserved != requestsReserved || b[1].Used != tokens || b[1].Reserved != tokensReserved {
		f.Errorf("the budgets are %+v; want %d and %d requests, %d and %d tokens", b, requests, requestsReserved, tokens, tokensReserved)
	}
}

// ended waits until the answer has ended, and is settled, and returns its entry.
func (f *fixture) ended() (e entry) {
	f.Helper()
	f.eventually("the answer has ended", func() bool {
		f.json("/demo/answers/the-answer", &e)
		return e.How != ""
	})
	return e
}

func (f *fixture) eventually(what string, holds func() bool) {
	f.Helper()
	for deadline := time.Now().Add(soon); !holds(); {
		if time.Now().After(deadline) {
			f.Fatalf("not within %v: %s", soon, what)
		}
		<-time.After(time.Millisecond)
	}
}

// What is used while an answer streams, and at its end.
func TestAnswerStreams(t *testing.T) {
	f := start(t, plan(20, 20_000))
	resp := f.ask(t.Context(), steady)
	if resp.StatusCode != http.StatusOK || resp.Header.Get("RateLimit") == "" ||
		!strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%s %v", resp.Status, resp.Header)
	}
	f.stand(0, 1, 0, 2000)

	lines := bufio.NewScanner(resp.Body)
	f.step()
	if !lines.Scan() {
		t.Fatal(lines.Err())
	}
	var first event
	if err := json.Unmarshal([]byte(strings.TrimPrefix(lines.Text(), "data: ")), &first); err != nil || first.Delta == "" {
		t.Fatalf("%q: %v", lines.Text(), err)
	}
	f.stand(0, 1, 500+about(first.Delta), 1500-about(first.Delta)) // as the gateway counts

	close(f.steps)
	var last event
	var text string
	for lines.Scan() {
		data, isData := strings.CutPrefix(lines.Text(), "data: ")
		if text = data; isData && data != done {
			if err := json.Unmarshal([]byte(data), &last); err != nil {
				t.Fatalf("%q: %v", data, err)
			}
		} else if isData {
			break
		}
	}
	if text != done || last.Usage == nil || last.Usage.Prompt != 504 || last.Usage.Total < 1100 {
		t.Fatalf("it ended with %q, %+v", text, last.Usage)
	}
	if e := f.ended(); e.How != complete || e.Estimate != 2000 || e.Used != last.Usage.Total {
		t.Errorf("the entry is %+v", e)
	}
	f.body(resp)
	f.stand(1, 0, last.Usage.Total, 0)
}

// However an answer ends: what was used is charged, and the estimate where nobody knows.
func TestEndings(t *testing.T) {
	for model, want := range map[string]struct {
		status    int
		how       outcome
		from, to  int64 // tokens
		requests  int64
		errorSent bool
	}{
		steady:  {http.StatusOK, complete, 1104, 1115, 1, false},
		silent:  {http.StatusOK, uncounted, 1100, 1111, 1, false},
		fragile: {http.StatusOK, brokeOff, 800, 815, 1, true},
		deep:    {http.StatusOK, complete, 4104, 4115, 1, false},
		busy:    {http.StatusServiceUnavailable, neverSent, 0, 0, 0, false},
	} {
		t.Run(model, func(t *testing.T) {
			f := start(t, plan(20, 2_500)) // deep overdraws it
			close(f.steps)
			resp := f.ask(t.Context(), model)
			body := f.body(resp)
			if resp.StatusCode != want.status || strings.Contains(body, "event: error") != want.errorSent {
				t.Errorf("%d %s", resp.StatusCode, body)
			}
			if model == busy && resp.Header.Get("Retry-After") != "2" {
				t.Errorf("Retry-After is %q", resp.Header.Get("Retry-After"))
			}
			e := f.ended()
			if e.How != want.how || e.Used < want.from || e.Used > want.to {
				t.Errorf("the entry is %+v; want %q with %d to %d", e, want.how, want.from, want.to)
			}
			f.stand(want.requests, 0, e.Used, 0)
		})
	}
}

func TestUnreachableModelCostsNothing(t *testing.T) {
	f := start(t, plan(20, 20_000))
	f.model.stop()
	if resp := f.ask(t.Context(), steady); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("%d %s", resp.StatusCode, f.body(resp))
	}
	f.stand(0, 0, 0, 0)
}

// A model that has the question, and breaks before it says a word, may have used all that it was
// allowed.
func TestEstimateStays(t *testing.T) {
	f := start(t, plan(20, 20_000))
	broken := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer broken.Close()
	st := memstore.New()
	defer func() { _ = st.Close() }()
	handler, err := newGateway(st, broken.Client(), broken.URL, plan(20, 20_000))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	f.url = server.URL
	if resp := f.ask(t.Context(), steady); resp.StatusCode != http.StatusBadGateway {
		t.Errorf("%d %s", resp.StatusCode, f.body(resp))
	}
	if e := f.ended(); e.How != brokeOff {
		t.Errorf("the entry is %+v", e)
	}
	f.stand(1, 0, 2000, 0)
}

// Who hangs up pays for what was answered until then, and no more.
func TestHangUp(t *testing.T) {
	f := start(t, plan(20, 20_000))
	ctx, hangUp := context.WithCancel(t.Context())
	resp := f.ask(ctx, steady)
	for range 3 {
		f.step()
	}
	events := bufio.NewScanner(resp.Body)
	for n := 0; n < 3 && events.Scan(); {
		if strings.HasPrefix(events.Text(), "data: ") {
			n++
		}
	}
	hangUp()
	e := f.ended()
	if e.How != hungUp || e.Used <= 500 || e.Used > 600 {
		t.Errorf("the entry is %+v", e)
	}
	f.eventually("it is settled", func() bool { // a moment after it has ended
		var b []budget
		f.json("/demo/budgets", &b)
		return b[1].Used == e.Used
	})
	f.stand(1, 0, e.Used, 0)
}

// rush sends 100 at once, and returns how many had which status. It calls answered when all have
// one.
func (f *fixture) rush(answered func()) map[int]int {
	f.Helper()
	resp := f.send(f.Context(), http.MethodPost, "/demo/rush", long(steady))
	statuses := map[int]int{}
	lines := json.NewDecoder(resp.Body)
	for n := range crowd {
		var status int
		if err := lines.Decode(&status); err != nil {
			f.Fatalf("after %d answers: %v", n, err)
		}
		statuses[status]++
	}
	answered()
	if err := lines.Decode(new(int)); !errors.Is(err, io.EOF) {
		f.Errorf("after all answers: %v", err)
	}
	return statuses
}

// Of 100 at once there is room for 10, and the model sees 10.
func TestHundredAtOnce(t *testing.T) {
	f := start(t, plan(50, 20_000))
	statuses := f.rush(func() {
		f.stand(0, 10, 0, 20_000)
		resp := f.ask(t.Context(), steady)
		var problem struct {
			Type     string
			Violated []string `json:"violated-policies"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || resp.StatusCode != http.StatusTooManyRequests ||
			resp.Header.Get("Retry-After") == "" || len(problem.Violated) != 1 || problem.Violated[0] != "tokens" {
			t.Errorf("one more: %s %v, %+v, %v", resp.Status, resp.Header, problem, err)
		}
		close(f.steps)
	})
	if statuses[http.StatusOK] != 10 || statuses[http.StatusTooManyRequests] != 90 || f.model.asked.Load() != 10 {
		t.Errorf("the statuses are %v, and the model was asked %d times", statuses, f.model.asked.Load())
	}
	var b []budget
	f.json("/demo/budgets", &b)
	if b[0].Used != 10 || b[1].Used < 11_000 || b[1].Used > 11_200 || b[1].Reserved != 0 {
		t.Errorf("the budgets are %+v", b)
	}
}

// Two gateways on one Redis have one budget.
func TestTwoGateways(t *testing.T) {
	server := redistest.Start(t)
	gateway := func() *fixture {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, PoolTimeout: soon})
		t.Cleanup(func() { _ = client.Close() })
		st, err := redisstore.New(client, redisstore.WithTimeout(soon)) // so that every outcome is known
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		return startOn(t, st, plan(50, 20_000))
	}
	one, two := gateway(), gateway()
	var both sync.WaitGroup
	var answered sync.WaitGroup
	answered.Add(2)
	statuses := make([]map[int]int, 2)
	for i, f := range []*fixture{one, two} {
		both.Go(func() {
			statuses[i] = f.rush(func() {
				answered.Done()
				answered.Wait()
				close(f.steps)
			})
		})
	}
	both.Wait()
	for _, f := range []*fixture{one, two} { // both see what was settled by both
		var b []budget
		f.json("/demo/budgets", &b)
		if b[0].Used != 10 || b[1].Used < 11_000 || b[1].Used > 11_200 {
			t.Errorf("the budgets are %+v", b)
		}
	}
	if n := statuses[0][http.StatusOK] + statuses[1][http.StatusOK]; n != 10 || one.model.asked.Load()+two.model.asked.Load() != 10 {
		t.Errorf("%d passed: %v", n, statuses)
	}
}

func TestRefusalsCostNothing(t *testing.T) {
	f := start(t, plan(20, 20_000))
	for _, c := range []struct {
		body   string
		header []string
		status int
	}{
		{long(steady), []string{"Authorization", "Bearer guess"}, http.StatusUnauthorized},
		{long(steady), []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		{`{`, nil, http.StatusBadRequest},
		{`{"prompt":""}`, nil, http.StatusBadRequest},
		{`{"prompt":"x","max_tokens":-1}`, nil, http.StatusBadRequest},
		{`{"prompt":"x","max_tokens":1e15}`, nil, http.StatusBadRequest},
		{`{"prompt":"` + strings.Repeat("x", maxBody) + `"}`, nil, http.StatusRequestEntityTooLarge},
	} {
		if resp := f.send(t.Context(), http.MethodPost, "/v1/chat/completions", c.body, c.header...); resp.StatusCode != c.status {
			t.Errorf("%.50s %v: %d %s", c.body, c.header, resp.StatusCode, f.body(resp))
		}
	}
	f.stand(0, 0, 0, 0)
	if n := f.model.asked.Load(); n != 0 {
		t.Errorf("the model was asked %d times", n)
	}
}

func TestUsageAndReset(t *testing.T) {
	f := start(t, plan(20, 20_000))
	close(f.steps)
	f.body(f.ask(t.Context(), steady))
	var usage struct {
		Limits []struct {
			Name      string
			Remaining int64
		}
	}
	f.json("/v1/usage", &usage)
	if len(usage.Limits) != 2 || usage.Limits[0].Remaining != 19 || usage.Limits[1].Remaining > 19_000 {
		t.Errorf("the usage is %+v", usage)
	}
	f.send(t.Context(), http.MethodPost, "/demo/reset", "")
	f.stand(0, 0, 0, 0)
}

// The program: a signal lets an answer that streams finish.
func TestProgram(t *testing.T) {
	run := demotest.Start(t, program(), "-pace", "1ms")
	f := &fixture{T: t, url: run.URL, client: run.Client}
	resp := f.ask(t.Context(), steady)
	stopped := make(chan int)
	go func() { stopped <- run.Stop() }()
	if body := f.body(resp); resp.StatusCode != http.StatusOK || !strings.Contains(body, done) {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if code := <-stopped; code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func TestProgramRefuses(t *testing.T) {
	for _, args := range [][]string{{"-nonsense"}, {"more"}, {"-redis", "127.0.0.1:1"}, {"-redis", "redis://127.0.0.1:1"}, {"-tokens", "0"}, {"-addr", "nowhere"}} {
		demotest.Fails(t, program(), args...)
	}
}
