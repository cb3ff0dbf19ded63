package problems_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/problems"
)

// The type of a refusal is the address of a page of the same server.
func ExampleHandler() {
	reports, err := semaphore.New(memstore.New(), "reports", 1)
	if err != nil {
		panic(err)
	}
	const types = "/problems/"
	atOnce := concurrency.New(reports, nethttp.Global(), policy.ProblemTypes(types))

	mux := http.NewServeMux()
	mux.Handle("GET /problems/", problems.Handler(types))
	mux.Handle("GET /report", atOnce(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		refused := httptest.NewRecorder() // a second request while the first one runs
		mux.ServeHTTP(refused, httptest.NewRequest(http.MethodGet, "/report", nil))
		var problem struct{ Type string }
		_ = json.Unmarshal(refused.Body.Bytes(), &problem)
		fmt.Println(refused.Code, problem.Type)

		page := httptest.NewRecorder()
		mux.ServeHTTP(page, httptest.NewRequest(http.MethodGet, problem.Type, nil))
		title, _, _ := strings.Cut(page.Body.String(), "\n")
		fmt.Println(page.Code, title)
	})))
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/report", nil))
	// Output:
	// 429 /problems/too-many-at-once
	// 200 Too many requests are being processed at once
}
