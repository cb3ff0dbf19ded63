package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// wire is a RoundTripper that reads requests, and answers them as told, with the last answer from
// then on.
type wire struct {
	answers []answer
	sent    []*http.Request
	bodies  []string
	at      []time.Time
	idle    int
}

type answer struct {
	err    error
	status int
	header http.Header
	body   io.ReadCloser
}

var errBroken = errors.New("broken")

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.sent, w.at = append(w.sent, r), append(w.at, time.Now())
	body := ""
	if r.Body != nil {
		data, err := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if err != nil {
			return nil, err
		}
		body = string(data)
	}
	w.bodies = append(w.bodies, body)
	a := w.answers[min(len(w.sent), len(w.answers))-1]
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: a.status, Header: a.header, Body: a.body}, nil // less than net/http's
}

func (w *wire) CloseIdleConnections() { w.idle++ }

// pauses returns how long it was between the tries.
func (w *wire) pauses() (pauses []time.Duration) {
	for n := range len(w.at) - 1 {
		pauses = append(pauses, w.at[n+1].Sub(w.at[n]))
	}
	return pauses
}

func header(pairs ...string) http.Header {
	h := make(http.Header)
	for n := 0; n < len(pairs); n += 2 {
		h.Set(pairs[n], pairs[n+1])
	}
	return h
}

func problem(status int, kind string, pairs ...string) answer {
	h := header(pairs...)
	h.Set("Content-Type", "application/problem+json")
	return answer{status: status, header: h, body: io.NopCloser(strings.NewReader(`{"type": "` + kind + `"}`))}
}

func request(ctx context.Context, method string, body io.Reader) *http.Request {
	return must(http.NewRequestWithContext(ctx, method, "http://shop.example/checkout", body))
}

const refusal = http.StatusTooManyRequests

var created = answer{status: http.StatusCreated}

func TestTransportSendsAKey(t *testing.T) {
	minted := "minted"
	for _, c := range []struct {
		name, method string
		withKey      *string
		set          []string
		want         []string
	}{
		{name: "POST", method: "POST", want: []string{minted}},
		{name: "PATCH", method: "PATCH", want: []string{minted}},
		{name: "PUT", method: "PUT"},
		{name: "DELETE", method: "DELETE"},
		{name: "GET", method: "GET"},
		{name: "no method"},
		{name: "another method", method: "LOCK"},
		{name: "POST of the caller's", method: "POST", withKey: new("k 1"), want: []string{`"k 1"`}},
		{name: "quotes", method: "POST", withKey: new(`a"b\`), want: []string{`"a\"b\\"`}},
		{name: "PUT of the caller's", method: "PUT", withKey: new("k"), want: []string{`"k"`}},
		{name: "another method of the caller's", method: "LOCK", withKey: new("k"), want: []string{`"k"`}},
		{name: "GET in the same context", method: "GET", withKey: new("k")},
		{name: "a field", method: "POST", withKey: new("k"), set: []string{"bare"}, want: []string{"bare"}},
		{name: "a field of a GET", method: "GET", set: []string{"bare"}, want: []string{"bare"}},
		{name: "off", method: "POST", withKey: new("k"), set: []string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := t.Context()
			if c.withKey != nil {
				ctx = idempotency.WithKey(ctx, *c.withKey)
			}
			seen := map[string]bool{}
			for range 2 {
				w := wire{answers: []answer{created}}
				r := request(ctx, "POST", strings.NewReader("tea"))
				r.Method = c.method
				if c.set != nil {
					r.Header["Idempotency-Key"] = c.set
				}
				before, url := r.Header.Clone(), r.URL.String()
				resp := must(idempotency.Transport(&w).RoundTrip(r))
				_ = resp.Body.Close()
				got, ok := w.sent[0].Header["Idempotency-Key"]
				if len(c.want) == 1 && c.want[0] == minted {
					if len(got) != 1 || len(got[0]) != 24 || got[0][0] != '"' || got[0][23] != '"' || seen[got[0]] {
						t.Errorf("sent %q", got)
					} else {
						seen[got[0]] = true
					}
				} else if !slices.Equal(got, c.want) || ok != (c.want != nil) {
					t.Errorf("sent %q, want %q", got, c.want)
				}
				if !maps.EqualFunc(before, r.Header, slices.Equal) || r.URL.String() != url || r == w.sent[0] {
					t.Errorf("the caller's request was changed: %v", r.Header)
				}
				if w.bodies[0] != "tea" || idempotency.Tries(resp) != 1 || resp.Request != w.sent[0] {
					t.Errorf("sent %q, %d tries", w.bodies[0], idempotency.Tries(resp))
				}
			}
		})
	}
}

func TestTransportRefusesBadKeys(t *testing.T) {
	for _, key := range []string{"", "ü", "a\nb", strings.Repeat("k", 256)} {
		w := wire{answers: []answer{created}}
		b := &body{Reader: strings.NewReader("tea")}
		resp, err := idempotency.Transport(&w).RoundTrip(request(idempotency.WithKey(t.Context(), key), "POST", b))
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil || len(w.sent) != 0 || b.closed.Load() == 0 {
			t.Errorf("%q: %v, sent %d, body closed %d times", key, err, len(w.sent), b.closed.Load())
		}
	}
	longest := strings.Repeat("k", 255)
	w := wire{answers: []answer{created}}
	_ = must(idempotency.Transport(&w).RoundTrip(request(idempotency.WithKey(t.Context(), longest), "POST", nil))).Body.Close()
}

// body is a request's, and counts how often it was closed.
type body struct {
	io.Reader
	closed atomic.Int32
}

func (b *body) Close() error {
	b.closed.Add(1)
	return nil
}

// What is sent again, with one key and the same body, and what is not.
func TestTransportSendsAgain(t *testing.T) {
	const own = "https://github.com/lockkeeper/lockkeeper/blob/main/docs/problems.md#"
	for _, c := range []struct {
		name, method string
		answer       answer
		off          bool
		again        bool
	}{
		{name: "an error", answer: answer{err: errBroken}, again: true},
		{name: "425", answer: answer{status: 425}, again: true},
		{name: "429", answer: answer{status: 429}, again: true},
		{name: "503", answer: answer{status: 503}, again: true},
		{name: "a problem in flight", answer: problem(409, own+"in-flight"), again: true},
		{name: "in flight elsewhere", answer: problem(409, "https://shop.example/problems/in-flight"), again: true},
		{name: "locked", answer: problem(409, own+"locked"), again: true},
		{name: "a PUT", method: "PUT", answer: answer{status: 503}, again: true},
		{name: "a DELETE", method: "DELETE", answer: answer{err: errBroken}, again: true},
		{name: "a GET", method: "GET", answer: answer{err: errBroken}, again: true},
		{name: "another method", method: "LOCK", answer: answer{err: errBroken}},
		{name: "no key", off: true, answer: answer{err: errBroken}},
		{name: "no key, 429", off: true, answer: answer{status: 429, header: header("Retry-After", "0")}},
		{name: "no key for a PUT", method: "PUT", off: true, answer: answer{status: 503}},
		{name: "200", answer: answer{status: 200}},
		{name: "500", answer: answer{status: 500, header: header("Retry-After", "0")}},
		{name: "409", answer: answer{status: 409, header: header("Retry-After", "0")}},
		{name: "409 of another type", answer: problem(409, "https://bank.example/account-locked", "Retry-After", "0")},
		{name: "409 that is no problem", answer: answer{status: 409, header: header("Content-Type", "application/json"),
			body: io.NopCloser(strings.NewReader(`{"type": "in-flight"}`))}},
		{name: "409 that cannot be read", answer: answer{status: 409, header: header("Content-Type", "application/problem+json"),
			body: io.NopCloser(strings.NewReader(`{"type": "in-flight"`))}},
		{name: "not retained", answer: problem(409, own+"response-not-retained", "Retry-After", "0")},
		{name: "unknown", answer: problem(409, own+"outcome-unknown", "Retry-After", "0")},
		{name: "reused", answer: problem(422, own+"key-reused", "Retry-After", "0")},
		{name: "a replayed 503", answer: answer{status: 503, header: header("Idempotency-Replayed", "true")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := wire{answers: []answer{c.answer, created}}
				r := request(t.Context(), "POST", strings.NewReader("tea"))
				if c.method != "" {
					r.Method = c.method
				}
				if c.off {
					r.Header["Idempotency-Key"] = nil
				}
				resp, err := idempotency.Transport(&w).RoundTrip(r)
				if !c.again {
					if len(w.sent) != 1 || !errors.Is(err, c.answer.err) {
						t.Errorf("sent %d times: %v", len(w.sent), err)
					}
					if err == nil {
						_ = resp.Body.Close()
						if resp.StatusCode != c.answer.status || idempotency.Tries(resp) != 1 {
							t.Errorf("%d after %d tries", resp.StatusCode, idempotency.Tries(resp))
						}
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				if len(w.sent) != 2 || resp.StatusCode != http.StatusCreated || idempotency.Tries(resp) != 2 {
					t.Fatalf("sent %d times, %d after %d tries", len(w.sent), resp.StatusCode, idempotency.Tries(resp))
				}
				first, second := w.sent[0].Header.Get("Idempotency-Key"), w.sent[1].Header.Get("Idempotency-Key")
				if first != second || (first == "") != (c.method != "") || w.bodies[1] != "tea" {
					t.Errorf("sent again with key %q after %q, body %q", second, first, w.bodies[1])
				}
			})
		})
	}
}

// The body of a 409 is there for the caller, whatever was read of it, and its errors.
func TestTransportReturnsTheProblem(t *testing.T) {
	for _, text := range []string{`{"type": "#outcome-unknown"}`, "{", strings.Repeat("x", 100<<10)} {
		content := io.MultiReader(strings.NewReader(text), iotest.ErrReader(errBroken))
		b := &body{Reader: content}
		w := wire{answers: []answer{{status: 409, header: header("Content-Type", "application/problem+json; charset=utf-8"), body: b}}}
		resp := must(idempotency.Transport(&w).RoundTrip(request(t.Context(), "POST", nil)))
		got, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if string(got) != text || !errors.Is(err, errBroken) || b.closed.Load() != 1 {
			t.Errorf("read %d bytes of %d: %v, closed %d times", len(got), len(text), err, b.closed.Load())
		}
	}
}

// Every response but the last is closed.
func TestTransportClosesWhatItDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		small := &body{Reader: strings.NewReader("later")}
		endless := &body{Reader: iotest.OneByteReader(zeros{})}
		stuck := newStuck()
		last := &body{Reader: strings.NewReader("later")}
		var w wire
		for _, b := range []io.ReadCloser{small, endless, stuck, last} {
			w.answers = append(w.answers, answer{status: 503, body: b})
		}
		start := time.Now()
		resp := must(idempotency.Transport(&w).RoundTrip(request(t.Context(), "POST", nil)))
		if small.closed.Load() != 1 || endless.closed.Load() != 1 || last.closed.Load() != 0 {
			t.Errorf("closed %d, %d and %d times", small.closed.Load(), endless.closed.Load(), last.closed.Load())
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("it took %v", took)
		}
		if data, err := io.ReadAll(resp.Body); string(data) != "later" || err != nil || idempotency.Tries(resp) != 4 {
			t.Errorf("%q, %v after %d tries", data, err, idempotency.Tries(resp))
		}
		_ = resp.Body.Close()
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// stuck is a body that sends nothing.
type stuck struct{ *io.PipeReader }

func newStuck() stuck {
	r, _ := io.Pipe()
	return stuck{r}
}

func TestTransportObeysRetryAfter(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		header   http.Header
		from, to time.Duration // before the second try; negative for none
	}{
		{"none", nil, 100 * ms, 300 * ms},
		{"seconds", header("Retry-After", "2"), 2 * time.Second, 3 * time.Second},
		{"zero", header("Retry-After", "0"), 0, 50 * ms},
		{"the longest", header("Retry-After", "30"), 30 * time.Second, 30 * time.Second},
		{"too long", header("Retry-After", "31"), -1, -1},
		{"years", header("Retry-After", "1000000000"), -1, -1},
		{"more than a duration", header("Retry-After", "10000000000"), -1, -1},
		{"more than a number", header("Retry-After", "99999999999999999999999"), -1, -1},
		{"garbage like a number", header("Retry-After", "1e9"), 100 * ms, 300 * ms},
		{"negative", header("Retry-After", "-5"), 100 * ms, 300 * ms},
		{"garbage", header("Retry-After", "soon"), 100 * ms, 300 * ms},
		{"a date", header("Retry-After", "Sat, 01 Jan 2000 00:00:04 GMT"), 4 * time.Second, 6 * time.Second},
		{"a date that is past", header("Retry-After", "Fri, 31 Dec 1999 23:00:00 GMT"), 0, 50 * ms},
		{"a date far off", header("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"), -1, -1},
		{"a date of another clock", header("Retry-After", "Fri, 02 Jan 2026 00:00:04 GMT", "Date", "Fri, 02 Jan 2026 00:00:00 GMT"),
			4 * time.Second, 6 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // whose time begins on 1 January 2000, UTC
				var longest time.Duration
				for range 20 {
					w := wire{answers: []answer{{status: refusal, header: c.header}, created}}
					resp := must(idempotency.Transport(&w).RoundTrip(request(t.Context(), "POST", nil)))
					_ = resp.Body.Close()
					w.at[0] = w.at[0].Truncate(time.Second)
					switch waited := w.pauses(); {
					case c.from < 0:
						if len(waited) > 0 || resp.StatusCode != refusal {
							t.Fatalf("%d, waited %v", resp.StatusCode, waited)
						}
					case len(waited) != 1 || waited[0] < c.from || waited[0] > c.to || resp.StatusCode != http.StatusCreated:
						t.Fatalf("%d, waited %v", resp.StatusCode, waited)
					}
					if c.name == "a date" {
						return // the clock has moved
					}
					for _, d := range w.pauses() {
						longest = max(longest, d)
					}
					time.Sleep(time.Second - time.Duration(time.Now().Nanosecond()))
				}
				if c.to > 0 && c.to != c.from && longest < c.from+(c.to-c.from)/4 {
					t.Errorf("waited %v at most", longest)
				}
			})
		})
	}
}

func TestTransportGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		second := answer{status: 503, header: header("Retry-After", "1")}
		for _, c := range []struct {
			answer  answer
			opts    []idempotency.TransportOption
			tries   int
			longest time.Duration
		}{
			{answer{err: errBroken}, nil, 4, 1425 * time.Millisecond},
			{answer{status: 503}, nil, 4, 1425 * time.Millisecond},
			{second, nil, 4, 6500 * time.Millisecond},
			{answer{err: errBroken}, opts(idempotency.WithMaxTries(1)), 1, 0},
			{answer{err: errBroken}, opts(idempotency.WithMaxTries(50), idempotency.WithMaxDelay(time.Second)), 50, 49 * time.Second},
			{second, opts(idempotency.WithMaxTries(99), idempotency.WithMaxDelay(2*time.Second)), 99, 196 * time.Second},
			{answer{err: errBroken}, opts(idempotency.WithMaxDelay(0)), 4, 0},
			{second, opts(idempotency.WithMaxDelay(0)), 1, 0},
		} {
			w := wire{answers: []answer{c.answer}}
			start := time.Now()
			resp, err := idempotency.Transport(&w, c.opts...).RoundTrip(request(t.Context(), "POST", nil))
			if err == nil {
				_ = resp.Body.Close()
			}
			if len(w.sent) != c.tries || !errors.Is(err, c.answer.err) || err == nil && resp.StatusCode != c.answer.status {
				t.Errorf("sent %d times, %v, want %d", len(w.sent), err, c.tries)
			}
			if took := time.Since(start); took > c.longest {
				t.Errorf("%d tries took %v, want %v at most", c.tries, took, c.longest)
			}
		}
	})
}

func opts(o ...idempotency.TransportOption) []idempotency.TransportOption { return o }

// A caller that leaves has its context's error at once, and nothing is sent after that.
func TestTransportWhenTheContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		why := errors.New("the customer has left")
		dropped := &body{Reader: strings.NewReader("later")}
		w := wire{answers: []answer{{status: refusal, header: header("Retry-After", "20"), body: dropped}}}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(why) })
		start := time.Now()
		_, err := idempotency.Transport(&w).RoundTrip(request(ctx, "POST", nil))
		if !errors.Is(err, why) || time.Since(start) != 3*time.Second || len(w.sent) != 1 || dropped.closed.Load() != 1 {
			t.Errorf("%v after %v, sent %d times, closed %d times", err, time.Since(start), len(w.sent), dropped.closed.Load())
		}

		w = wire{answers: []answer{{err: errBroken}}}
		once := idempotency.Transport(&w, idempotency.WithMaxTries(1))
		if _, err := once.RoundTrip(request(ctx, "POST", nil)); !errors.Is(err, why) || len(w.sent) != 1 {
			t.Errorf("over from the start: %v, sent %d times", err, len(w.sent))
		}
	})
}

// A refusal is returned at once if the deadline is before the next try.
func TestTransportWithADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
			w := wire{answers: []answer{{status: refusal, header: header("Retry-After", "1")}}}
			start := time.Now()
			resp, err := idempotency.Transport(&w, idempotency.WithMaxTries(99)).RoundTrip(request(ctx, "POST", nil))
			switch {
			case err == nil:
				_ = resp.Body.Close()
				if rest := 3500*time.Millisecond - time.Since(start); rest > time.Second || rest <= 0 {
					t.Errorf("it gave up with %v left for a delay of a second", rest)
				}
			case !errors.Is(err, context.DeadlineExceeded):
				t.Error(err)
			}
			if len(w.sent) < 2 || len(w.sent) > 4 {
				t.Errorf("sent %d times", len(w.sent))
			}
			cancel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		w := wire{answers: []answer{{status: refusal, header: header("Retry-After", "11")}}}
		start := time.Now()
		resp, err := idempotency.Transport(&w).RoundTrip(request(ctx, "POST", nil))
		if err != nil || time.Since(start) != 0 {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		_ = resp.Body.Close()
	})
}

func TestTransportOptions(t *testing.T) {
	for want, f := range map[string]func(){
		"idempotency: WithMaxTries: 0 is less than 1":                  func() { idempotency.WithMaxTries(0) },
		"idempotency: WithMaxDelay: -1s is neither 0 nor at least 1ms": func() { idempotency.WithMaxDelay(-time.Second) },
		"idempotency: WithMaxDelay: 1µs is neither 0 nor at least 1ms": func() { idempotency.WithMaxDelay(time.Microsecond) },
		"idempotency: WithMaxBody: -1 is negative":                     func() { idempotency.WithMaxBody(-1) },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); got != want {
					t.Errorf("%q, want %q", got, want)
				}
			}()
			f()
		}()
	}
	var w wire
	(&http.Client{Transport: idempotency.Transport(&w)}).CloseIdleConnections()
	(&http.Client{Transport: idempotency.Transport(http.NewFileTransport(http.Dir(".")))}).CloseIdleConnections()
	if w.idle != 1 {
		t.Errorf("idle connections were closed %d times", w.idle)
	}
}
