package httpmw

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
)

// valued is a netHTTP whose contexts have a value of their own.
type valued struct{ netHTTP }

func (valued) Value(c pair, key any) (any, bool) {
	if key == "path" {
		return c.r.URL.Path, true
	}
	return nil, false
}

// What is kept of a decision's context, and used at any time, never sees a framework's context that
// may be another request's by then.
func TestPlanContextEndsWithTheDecision(t *testing.T) {
	type userKey struct{}
	parent, cancel := context.WithCancel(context.WithValue(t.Context(), userKey{}, "u"))
	r := httptest.NewRequestWithContext(parent, "GET", "/first", nil)
	b := &base[pair]{Adapter: valued{}, values: valued{}}
	ctx := newPlanContext(b, pair{r: r})
	if ctx.Value("path") != "/first" || ctx.Value(userKey{}) != "u" || ctx.Value("other") != nil {
		t.Errorf("%v, %v, %v", ctx.Value("path"), ctx.Value(userKey{}), ctx.Value("other"))
	}
	derived, stop := context.WithCancel(ctx)
	defer stop()
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for range 1000 {
				if got := derived.Value("path"); got != "/first" && got != nil {
					t.Errorf("%v", got)
				}
			}
		})
	}
	ctx.end()
	r.URL.Path = "/second" // the framework uses it again
	if got := derived.Value("path"); got != nil {
		t.Errorf("%v after the decision", got)
	}
	readers.Wait()
	if derived.Value(userKey{}) != "u" || derived.Err() != nil {
		t.Error("the request's own context is gone")
	}
	if cancel(); derived.Err() == nil {
		t.Error("the request's end does not end it")
	}
}
