// Command connect is a service of connectrpc.com/connect behind all four policies, as interceptors.
// Its clients speak Connect, gRPC or gRPC-Web, and get refusals in the same protocol.
//
// A call runs once in each of them, and a repeat gets the stored answer, in another protocol too.
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

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
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

	user := connectmw.ByContext(userKey{})
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, h, connect.WithInterceptors(
		ratelimit.New(requests, connectmw.ByClientIP(clientip.Direct())),
		connect.UnaryInterceptorFunc(authenticate),
		idempotency.New(orders, connectmw.ScopeBy(user), policy.Required()),
		exclusive.New(carts, user, policy.Wait(100*time.Millisecond)),
		concurrency.New(writes, connectmw.Global()),
	)))
	return mux
}

type userKey struct{}

// authenticate stands in for real authentication: it believes the header X-User.
func authenticate(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		user := req.Header().Get("X-User")
		if user == "" {
			return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("who are you?"))
		}
		return next(context.WithValue(ctx, userKey{}, user), req)
	}
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
