package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

type handler = func(context.Context, *connect.Request[wrapperspb.StringValue]) (*connect.Response[emptypb.Empty], error)

// serve starts a server whose methods have this handler behind interceptors. It returns a function
// that calls a method, and returns its code.
func serve(h handler, chain ...connect.Interceptor) (call func(procedure, text string) string, closed func()) {
	methods := http.NewServeMux()
	for _, procedure := range []string{"/shop.Shop/Search", "/shop.Shop/Checkout"} {
		methods.Handle(procedure, connect.NewUnaryHandler(procedure, h, connect.WithInterceptors(chain...)))
	}
	server := httptest.NewServer(methods)
	return func(procedure, text string) string {
		client := connect.NewClient[wrapperspb.StringValue, emptypb.Empty](server.Client(), server.URL+procedure)
		if _, err := client.CallUnary(context.Background(), connect.NewRequest(wrapperspb.String(text))); err != nil {
			return connect.CodeOf(err).String()
		}
		return "ok"
	}, server.Close
}

func done(context.Context, *connect.Request[wrapperspb.StringValue]) (*connect.Response[emptypb.Empty], error) {
	return connect.NewResponse(&emptypb.Empty{}), nil
}

type userKey struct{}

// authenticate stands in for authentication: it takes the request's text for the user's name.
var authenticate = connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		user := req.Any().(*wrapperspb.StringValue).GetValue()
		return next(context.WithValue(ctx, userKey{}, user), req)
	}
})

// A limit for each user and procedure.
func Example_byProcedure() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(1))
	if err != nil {
		panic(err)
	}
	limited := ratelimit.New(limiter, connectmw.Join(connectmw.ByContext(userKey{}), connectmw.ByProcedure()))
	call, closed := serve(done, authenticate, limited)
	defer closed()
	fmt.Println(call("/shop.Shop/Search", "alice"))
	fmt.Println(call("/shop.Shop/Search", "alice"))
	fmt.Println(call("/shop.Shop/Checkout", "alice"))
	fmt.Println(call("/shop.Shop/Search", "bob"))
	// Output:
	// ok
	// resource_exhausted
	// ok
	// ok
}

// A client that calls a backend at most ten times a second, in all of its processes together, and
// obeys it when it asks for a pause.
func ExampleNewClient() {
	limiter, err := tokenbucket.New(memstore.New(), "backend", tokenbucket.PerSecond(10)) // in production, on Redis
	if err != nil {
		panic(err)
	}
	backend := httptest.NewServer(connect.NewUnaryHandler("/shop.Shop/Search", done))
	defer backend.Close()
	client := connect.NewClient[wrapperspb.StringValue, emptypb.Empty](backend.Client(), backend.URL+"/shop.Shop/Search",
		connect.WithInterceptors(ratelimit.NewClient(limiter, connectmw.Global())))
	_, err = client.CallUnary(context.Background(), connect.NewRequest(wrapperspb.String("tea")))
	fmt.Println(err)
	// Output: <nil>
}

// A call costs the tokens of its answer, for which an estimate is reserved until they are known.
func ExampleCosts() {
	limiter, err := tokenbucket.New(memstore.New(), "tokens", tokenbucket.PerDay(90_000))
	if err != nil {
		panic(err)
	}
	estimate := func(*connectmw.Call) tokenbucket.Cost { return tokenbucket.Cost{"tokens": 2_000} }
	call, closed := serve(
		func(ctx context.Context, _ *connect.Request[wrapperspb.StringValue]) (*connect.Response[emptypb.Empty], error) {
			if reservation, ok := tokenbucket.FromContext(ctx); ok {
				_ = reservation.Use("tokens", 80)
			}
			return connect.NewResponse(&emptypb.Empty{}), nil
		}, ratelimit.New(limiter, connectmw.Global(), ratelimit.Costs(estimate)))
	defer closed()
	fmt.Println(call("/shop.Shop/Search", "tea"))
	d, err := limiter.Peek(context.Background(), "global")
	if err != nil {
		panic(err)
	}
	fmt.Println(d.Limits()[0].Remaining)
	// Output:
	// ok
	// 89920
}

// Only calls that fail to authenticate count.
func ExampleChargeCodes() {
	limiter, err := tokenbucket.New(memstore.New(), "login", tokenbucket.PerHour(2))
	if err != nil {
		panic(err)
	}
	call, closed := serve(
		func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[emptypb.Empty], error) {
			if req.Msg.GetValue() != "right" {
				return nil, connect.NewError(connect.CodeUnauthenticated, errors.New("wrong password"))
			}
			return connect.NewResponse(&emptypb.Empty{}), nil
		}, ratelimit.New(limiter, connectmw.Global(), ratelimit.ChargeCodes(connect.CodeUnauthenticated)))
	defer closed()
	for _, password := range []string{"right", "right", "right", "wrong", "wrong", "wrong", "right"} {
		fmt.Println(password, call("/shop.Shop/Checkout", password))
	}
	// Output:
	// right ok
	// right ok
	// right ok
	// wrong unauthenticated
	// wrong unauthenticated
	// wrong resource_exhausted
	// right resource_exhausted
}
