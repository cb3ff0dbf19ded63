package grpcmw_test

import (
	"context"
	"fmt"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
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

// A key is found by what a call carries; an API key, or else the user's address.
func ExampleFirstOf() {
	key := grpcmw.FirstOf(grpcmw.ByMetadata("x-api-key"), grpcmw.ByMethod())
	for _, md := range []metadata.MD{metadata.Pairs("x-api-key", "k-17"), {}} {
		call := grpcmw.NewCall(metadata.NewIncomingContext(context.Background(), md), "/shop.Shop/Checkout", nil)
		fmt.Println(key(call))
	}
	// Output:
	// 0:k-17 <nil>
	// 1:/shop.Shop/Checkout <nil>
}

// What a client reads in a refusal.
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
