package grpcmw_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

// The policies of a server, for its unary calls and its streams alike.
func ExampleServerOptions() {
	store := memstore.New()
	defer store.Close()
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	orders, err := guard.New(store, "orders")
	if err != nil {
		panic(err)
	}
	type user struct{}
	server := grpc.NewServer(grpcmw.ServerOptions(
		ratelimit.New(limiter, grpcmw.ByPeer()),
		grpcmw.Interceptors{ // yours, in its place
			Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				return handler(context.WithValue(ctx, user{}, "alice"), req)
			},
		},
		idempotency.New(orders, grpcmw.ScopeBy(grpcmw.ByContext(user{})), policy.Required()),
	)...)
	defer server.Stop()
	fmt.Println(len(server.GetServiceInfo()), "services so far")
	// Output: 0 services so far
}

// The authenticated user, or else the client's address.
func ExampleFirstOf() {
	type user struct{}
	key := grpcmw.FirstOf(grpcmw.ByContext(user{}), grpcmw.ByPeer())
	from := &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7), Port: 49152}
	stranger := peer.NewContext(context.Background(), &peer.Peer{Addr: from})
	for _, ctx := range []context.Context{context.WithValue(stranger, user{}, "alice"), stranger} {
		fmt.Println(key(grpcmw.NewCall(ctx, "/shop.Shop/Checkout", nil)))
	}
	// Output:
	// 0:alice <nil>
	// 1:203.0.113.7 <nil>
}

// The details of a refusal, for a client.
func ExampleStatusOf() {
	st := grpcmw.StatusOf(policy.Denial{Reason: policy.QuotaExceeded, RetryAfter: 6e9, ViolatedPolicies: []string{"api"}})
	fmt.Println(st.Code())
	for _, detail := range status.Convert(st.Err()).Details() {
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			fmt.Println(d.GetReason())
		case *errdetails.RetryInfo:
			fmt.Println("again in", d.GetRetryDelay().AsDuration())
		case *errdetails.QuotaFailure:
			fmt.Println(d.GetViolations()[0].GetSubject())
		}
	}
	// Output:
	// ResourceExhausted
	// QUOTA_EXCEEDED
	// again in 6s
	// limit:api
}

// The application's own status, in which interceptors outside still find the denial.
func ExampleOnDeny() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(1))
	if err != nil {
		panic(err)
	}
	limited := ratelimit.New(limiter, grpcmw.Global(), grpcmw.OnDeny(func(call *grpcmw.Call, d policy.Denial) error {
		return grpcmw.NewError(d, status.Newf(codes.Unavailable, "%s: come back in %v", call.FullMethod(), d.RetryAfter.Round(1e9)))
	})).Unary
	info := &grpc.UnaryServerInfo{FullMethod: "/shop.Shop/Search"}
	search := func(context.Context, any) (any, error) { return nil, nil }
	if _, err := limited(context.Background(), nil, info, search); err != nil {
		panic(err)
	}
	_, err = limited(context.Background(), nil, info, search)
	denial, _ := grpcmw.DenialOf(err)
	fmt.Println(status.Convert(err).Message())
	fmt.Println(denial.Reason)
	// Output:
	// /shop.Shop/Search: come back in 1m0s
	// quota-exceeded
}
