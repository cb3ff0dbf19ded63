// Package fenced refuses calls of holders that have lost their lock, as gRPC interceptors:
//
//	fenced.New(marks, grpcmw.ByField("cart_id"))
//
// Its client interceptors are what sends the fence, from the client that holds the lock.
//
// The mechanism behind it is the fence of a lock: package [fence] explains what it is for.
package fenced

import (
	"context"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/adapter"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// fenceMetadata is the metadata that has the fence.
var fenceMetadata = strings.ToLower(fence.Header)

// New returns interceptors that run the handler of a call whose fence is not lower than the largest
// seen for the call's key, and answer without the handler otherwise:
//
//   - FAILED_PRECONDITION, with an ErrorInfo of reason STALE_FENCE, if a larger fence has been
//     seen: others have had the lock since the sender lost it;
//   - INVALID_ARGUMENT, with BadRequest, if the call has no fence, unless policy.AllowUnfenced lets
//     it pass; several fences, or one that cannot be read; no key, one of more than 1,024 bytes, or
//     one that the checker has no place for;
//   - UNAVAILABLE with RetryInfo if the checker's store is unavailable. With policy.RunUnprotected
//     the handler runs all the same, and the answer's header has "fence-status: bypassed";
//   - INTERNAL if the application has not provided the key, which is logged once (policy.Logger),
//     or if the key function fails, or the checker in another way.
//
// The fence is in the metadata called fence.Header, in lower case, which [UnaryClientInterceptor]
// and [StreamClientInterceptor] send. The key is the resource that the call works on, and all
// clients that write it must hold the same lock, since fences of different locks cannot be
// compared. A fence that passes keeps out every lower one from then on, whatever comes of the call;
// one of a shared lease keeps out none.
//
// The fence is compared before the handler runs, that of a stream once, when it begins. A handler
// that is paused after that, or a long stream, can still overwrite newer data: let it
// compare again where it writes, with the token that fence.FromContext finds, by redisfence's Set
// or sqlfence's Exec. Where nothing can compare, let the handlers of a key run one at a time, so
// that no newer fence passes while one runs: put the interceptors behind concurrency, with a
// semaphore of one, on a memory store where one process has the resource to itself.
//
// They stand behind authentication and authorisation, since a client that sends a large fence locks
// out all others, and behind idempotency, so that a client that has lost the lock still gets the
// answers to its earlier requests.
//
// Options are policy.AllowUnfenced, policy.RunUnprotected, grpcmw.Unless, grpcmw.OnError and
// grpcmw.OnDeny, and those of package policy for every middleware. New panics if checker or key is
// nil.
func New(checker fence.Checker, key grpcmw.KeyFunc, opts ...policy.FencedOption) grpcmw.Interceptors {
	settings := setting.Of(opts)
	m := middleware.NewFence(checker, settings)
	if key == nil {
		panic("fenced: New: nil key")
	}
	i := &interceptor{m, key, adapter.HooksOf("fenced", settings)}
	return grpcmw.Interceptors{Unary: i.unary, Stream: i.stream}
}

type interceptor struct {
	fence *middleware.Fence
	key   grpcmw.KeyFunc
	hooks adapter.Hooks
}

func (i *interceptor) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	call := grpcmw.NewCall(ctx, info.FullMethod, req)
	if i.hooks.Skips(call) {
		return handler(ctx, req)
	}
	ctx, err := i.check(call)
	if err != nil {
		return nil, err
	}
	return handler(ctx, req)
}

func (i *interceptor) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	stream, call := adapter.NewStream(ss, info)
	if i.hooks.Skips(call) {
		return handler(srv, stream)
	}
	ctx, err := i.check(call)
	if err != nil {
		return err
	}
	stream.WithContext(ctx)
	return handler(srv, stream)
}

// check returns the context of a call's handler, or the error of a call that is refused.
func (i *interceptor) check(call *grpcmw.Call) (context.Context, error) {
	ctx := call.Context()
	passage, denial := i.fence.Check(ctx, metadata.ValueFromIncomingContext(ctx, fenceMetadata), func() (string, error) { return i.key(call) })
	if denial != nil {
		return nil, i.hooks.Deny(call, *denial)
	}
	if passage.Bypassed != nil {
		i.hooks.Report(call, passage.Bypassed)
		adapter.SetHeader(ctx, "fence-status", "bypassed")
	}
	return passage.Context, nil
}
