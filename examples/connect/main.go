// Command connect is a service of connectrpc.com/connect behind all four policies. Its clients
// speak Connect, gRPC or gRPC-Web, and get refusals in the same protocol: deny.go has the hook for
// that.
//
// A call runs once in each of them, and a repeat gets the stored answer.
package main

import (
	"context"
	"errors"
	"flag"
	"log"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// procedure is what the program serves. Those of a service that was generated are under its prefix.
const procedure = "/shop.v1.ShopService/Checkout"

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "`address` to listen on")
	flag.Parse()
	server := &http.Server{Addr: *addr, Handler: newServer(memstore.New(), checkout), ReadTimeout: 10 * time.Second}
	server.Protocols = new(http.Protocols)
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true) // for gRPC without TLS
	log.Fatal(server.ListenAndServe())
}

type handler = func(context.Context, *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error)

func newServer(st store.Store, h handler) http.Handler {
	requests := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100).Burst(20)))
	orders := must(guard.New(st, "checkout"))
	carts := must(lock.New(st, "carts"))
	writes := must(semaphore.New(st, "writes", 2))

	address, user := nethttp.ByClientIP(clientip.Direct()), nethttp.ByContext(userKey{})
	limit := ratelimit.New(requests, address, nethttp.OnDeny(deny))
	once := idempotency.New(orders, nethttp.ScopeBy(user), policy.Required(), nethttp.OnDeny(deny))
	oneAtATime := exclusive.New(carts, user, policy.Wait(100*time.Millisecond), nethttp.OnDeny(deny))
	twoAtATime := concurrency.New(writes, nethttp.Global(), nethttp.OnDeny(deny))

	mux := http.NewServeMux()
	mux.Handle(procedure, once(oneAtATime(twoAtATime(connect.NewUnaryHandler(procedure, h)))))
	return limit(authenticate(mux))
}

type userKey struct{}

// authenticate stands in for real authentication: it believes the header X-User.
func authenticate(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user := r.Header.Get("X-User")
		if user == "" {
			_ = refuse.Write(w, r, connect.NewError(connect.CodeUnauthenticated, errors.New("who are you?")))
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
	})
}

func checkout(_ context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
	return connect.NewResponse(wrapperspb.String("order of " + r.Msg.GetValue())), nil // yours goes here
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
