package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things/thingsconnect"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// A client whose calls carry a key, and a server that runs a call once for each key, and limits the
// calls of an address.
func Example() {
	st := memstore.New() // or redisstore.New(client), for several processes
	defer st.Close()
	limiter := must(tokenbucket.New(st, "api", tokenbucket.PerHour(2)))
	orders := must(guard.New(st, "orders"))

	mux := http.NewServeMux()
	mux.Handle(thingsconnect.NewThingsHandler(new(service), connect.WithInterceptors(
		ratelimit.New(limiter, connectmw.ByClientIP(clientip.Direct())),
		idempotency.New(orders, connectmw.Unscoped(), policy.Required()),
	)))
	server := httptest.NewServer(mux)
	defer server.Close()

	client := thingsconnect.NewThingsClient(server.Client(), server.URL, connect.WithInterceptors(idempotency.NewClient()))
	for range 3 {
		resp, err := client.Make(context.Background(), connect.NewRequest(&things.MakeRequest{Id: "1"}))
		var refused *connect.Error
		if errors.As(err, &refused) {
			fmt.Println(refused.Code(), "for another", refused.Meta().Get("Retry-After"), "s")
			continue
		}
		fmt.Println(resp.Msg.GetText())
	}
	// Output:
	// run 1
	// run 2
	// resource_exhausted for another 1800 s
}
