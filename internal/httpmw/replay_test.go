package httpmw

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// The Content-Length of an answer to HEAD is replayed, too.
func TestHead(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"without a body": func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "5000") },
		"with a body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5000")
			_, _ = io.WriteString(w, strings.Repeat("x", 5000))
		},
	} {
		for version, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
			t.Run(name+" "+version, func(t *testing.T) {
				_, h := guarded(t, handler, policy.Methods(http.MethodHead))
				server := httptest.NewUnstartedServer(h)
				server.EnableHTTP2 = http2
				server.StartTLS()
				defer server.Close()
				for n := range 2 {
					r := must(http.NewRequestWithContext(t.Context(), http.MethodHead, server.URL, nil))
					r.Header.Set("Idempotency-Key", "k")
					resp := must(server.Client().Do(r))
					_ = resp.Body.Close()
					replayed := resp.Header.Get("Idempotency-Replayed") == "true"
					if resp.ContentLength != 5000 || replayed != (n == 1) || (resp.ProtoMajor == 2) != http2 {
						t.Errorf("time %d: length %d, %v", n, resp.ContentLength, resp.Header)
					}
				}
			})
		}
	}
}

// A record that cannot be replayed, as of an earlier version, is answered as one that was not
// retained, and nothing runs.
func TestRecordsThatCannotBeReplayed(t *testing.T) {
	for name, result := range map[string]guard.Result{
		"an earlier version": {Status: 200, Data: []byte{1, 0, 'b'}},
		"nothing":            {Status: 200, Data: []byte{}},
		"no status":          {Status: 0, Data: response{}.encode(fields{})},
	} {
		t.Run(name, func(t *testing.T) {
			m, h := guarded(t, func(http.ResponseWriter, *http.Request) { t.Error("the handler runs") })
			r := httptest.NewRequest(http.MethodPost, "/", nil)
			r.Header.Set("Idempotency-Key", "k")
			sum := must(fingerprint(r, unbounded(), &setting.Settings{}))
			attempt, _, err := m.decider.Guard.Begin(t.Context(), guard.Operation{Key: "k", Fingerprint: sum})
			if err != nil {
				t.Fatal(err)
			}
			if err := attempt.Complete(t.Context(), result); err != nil {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), string(policy.ResponseNotRetained)) {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}
