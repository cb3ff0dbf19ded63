package adapter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Hooks are the functions in connect's terms that an interceptor was given.
type Hooks struct {
	skip   func(*connectmw.Call) bool
	deny   func(*connectmw.Call, policy.Denial) error
	report func(*connectmw.Call, error)
	types  string // of problems
}

// HooksOf returns the hooks among an interceptor's settings. It panics, as the New of the package
// called name, if one of them was made for another framework, or if the problem types are a path,
// which clients of gRPC cannot resolve.
func HooksOf(name string, s setting.Settings) Hooks {
	if strings.HasPrefix(s.ProblemTypes, "/") {
		panic(fmt.Sprintf("%s: New: policy.ProblemTypes: %q is a path, and gRPC needs a URL", name, s.ProblemTypes))
	}
	return Hooks{
		skip:   setting.Hook[func(*connectmw.Call) bool](name, s.Skip),
		deny:   setting.Hook[func(*connectmw.Call, policy.Denial) error](name, s.Deny),
		report: setting.Hook[func(*connectmw.Call, error)](name, s.Report),
		types:  s.ProblemTypes,
	}
}

// Skips reports whether the interceptor leaves this call alone.
func (h *Hooks) Skips(call *connectmw.Call) bool { return h.skip != nil && h.skip(call) }

// Deny returns the error with which a server refuses a call before its handler runs. A client may
// repeat this call after the denial's delay.
func (h *Hooks) Deny(call *connectmw.Call, d policy.Denial) error {
	if d.RetryAfter > 0 {
		seconds := int64((d.RetryAfter-1)/time.Second) + 1
		call.ResponseHeader().Set("Retry-After", strconv.FormatInt(seconds, 10))
	}
	return h.Interrupt(call, d)
}

// Interrupt returns the error with which a server refuses what a running handler asks for. It sets
// no metadata: the handler may be sending, and a repeat would run it again.
func (h *Hooks) Interrupt(call *connectmw.Call, d policy.Denial) error {
	err := h.Refusal(call, d)
	middleware.NoteOf(call.Context()).Refused(0, err)
	return err
}

// Refusal returns the error for a denial, and sets no metadata. A failure of the store, or of a key
// function, is reported; a mere denial is not.
func (h *Hooks) Refusal(call *connectmw.Call, d policy.Denial) error {
	if middleware.IsFailure(d) {
		h.Report(call, d.Err)
	}
	d.TypeBase = h.types
	if h.deny != nil {
		return h.deny(call, d)
	}
	return connectmw.ErrorOf(d)
}

// Silent reports whether a handler has returned neither a message nor an error.
func Silent(resp connect.AnyResponse, err error) bool {
	if err != nil {
		return false
	}
	if resp == nil {
		return true
	}
	m, ok := resp.Any().(proto.Message)
	return ok && !m.ProtoReflect().IsValid()
}

// GivenUp returns the error of a handler that has returned neither, and whose context is over: that
// of the call's context, or, if that is not over, of what the denial says.
func (h *Hooks) GivenUp(call *connectmw.Call, d policy.Denial) error {
	ctx := call.Context()
	if err := ctx.Err(); err != nil {
		return Ended(err)
	}
	if deadline, ok := ctx.Deadline(); ok && !time.Now().Before(deadline) { // a moment before its context ends
		return Ended(context.DeadlineExceeded)
	}
	return h.Refusal(call, d)
}

// Report reports an error that the client does not see.
func (h *Hooks) Report(call *connectmw.Call, err error) {
	if h.report != nil {
		h.report(call, err)
	}
}

// Ended returns the error of a call whose context has ended with this one.
func Ended(err error) error { return connect.NewError(CodeOf(err), err) }

// CodeOf returns the code with which connect ends a handler's call; zero without an error.
func CodeOf(err error) connect.Code {
	var coded *connect.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded) && coded.Code() >= connect.CodeCanceled && coded.Code() <= connect.CodeUnauthenticated:
		return coded.Code()
	case coded != nil: // with a code that is none
		return connect.CodeUnknown
	case errors.Is(err, context.Canceled):
		return connect.CodeCanceled
	case errors.Is(err, context.DeadlineExceeded):
		return connect.CodeDeadlineExceeded
	default:
		return connect.CodeUnknown
	}
}
