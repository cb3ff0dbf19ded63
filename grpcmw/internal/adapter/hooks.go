// Package adapter is how interceptors work in gRPC.
package adapter

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Hooks are the functions in gRPC's terms that an interceptor was given.
type Hooks struct {
	skip   func(*grpcmw.Call) bool
	deny   func(*grpcmw.Call, policy.Denial) error
	report func(*grpcmw.Call, error)
	types  string // of problems
}

// HooksOf returns the hooks among an interceptor's settings. It panics, as the New of the package
// called name, if one of them was made for another framework, or if the problem types are a path,
// which gRPC's clients cannot resolve.
func HooksOf(name string, s setting.Settings) Hooks {
	if strings.HasPrefix(s.ProblemTypes, "/") {
		panic(fmt.Sprintf("%s: New: policy.ProblemTypes: %q is a path, and gRPC needs a URL", name, s.ProblemTypes))
	}
	return Hooks{
		skip:   setting.Hook[func(*grpcmw.Call) bool](name, s.Skip),
		deny:   setting.Hook[func(*grpcmw.Call, policy.Denial) error](name, s.Deny),
		report: setting.Hook[func(*grpcmw.Call, error)](name, s.Report),
		types:  s.ProblemTypes,
	}
}

// Skips reports whether the interceptor leaves this call alone.
func (h *Hooks) Skips(call *grpcmw.Call) bool { return h.skip != nil && h.skip(call) }

// Deny returns the error with which a server refuses a call before its handler runs. A client whose
// gRPC repeats calls repeats this one after the denial's delay, or not at all if it has none.
func (h *Hooks) Deny(call *grpcmw.Call, d policy.Denial) error {
	return h.refuse(call, d, d.RetryAfter)
}

// Interrupt returns the error with which a server refuses what a running handler asks for. No
// client's gRPC repeats the call: the handler would run again.
func (h *Hooks) Interrupt(call *grpcmw.Call, d policy.Denial) error { return h.refuse(call, d, 0) }

func (h *Hooks) refuse(call *grpcmw.Call, d policy.Denial, again time.Duration) error {
	setPushback(call.Context(), again)
	err := h.Refusal(call, d)
	middleware.NoteOf(call.Context()).Refused(0, err)
	return err
}

// setPushback sets the trailer by which a client's gRPC, which reads no details, repeats a call
// after this time, or not at all if it is zero. Clients read 32 bits. They do not repeat a call with
// several of these trailers, so each refusal sets it once.
func setPushback(ctx context.Context, after time.Duration) {
	millis := int64(-1)
	if after > 0 {
		millis = min(int64((after-1)/time.Millisecond)+1, math.MaxInt32)
	}
	_ = grpc.SetTrailer(ctx, metadata.Pairs("grpc-retry-pushback-ms", strconv.FormatInt(millis, 10)))
}

// Refusal returns the error for a denial, and sets no trailer. A failure of the store, or of a key
// function, is reported; a mere denial is not.
func (h *Hooks) Refusal(call *grpcmw.Call, d policy.Denial) error {
	if middleware.IsFailure(d) {
		h.Report(call, d.Err)
	}
	d.TypeBase = h.types
	if h.deny != nil {
		return h.deny(call, d)
	}
	return grpcmw.NewError(d, grpcmw.StatusOf(d))
}

// Silent reports whether a handler has returned neither a message nor an error.
func Silent(resp any, err error) bool {
	if err != nil {
		return false
	}
	m, ok := resp.(proto.Message)
	return resp == nil || ok && !m.ProtoReflect().IsValid()
}

// GivenUp returns the error of a handler that has returned neither, and whose context is over: that of the
// call's context, or, if that is not over, of what the denial says.
func (h *Hooks) GivenUp(call *grpcmw.Call, d policy.Denial) error {
	ctx := call.Context()
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) { // a moment before its context ends
		return status.FromContextError(context.DeadlineExceeded).Err()
	}
	setPushback(ctx, 0) // the handler has run
	return h.Refusal(call, d)
}

// Report reports an error that the client does not see.
func (h *Hooks) Report(call *grpcmw.Call, err error) {
	if h.report != nil {
		h.report(call, err)
	}
}

// SetHeader sets metadata of the answer's header. It fails only when the header has been sent, or
// when the call is not a server's, as in a test of an interceptor alone, and then nothing is lost.
func SetHeader(ctx context.Context, name, value string) {
	_ = grpc.SetHeader(ctx, metadata.Pairs(name, value))
}
