package main

import (
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// errorWriter writes errors in the protocol of the request. It is given the options that the handlers
// are given.
var errorWriter = connect.NewErrorWriter()

// deny is the OnDeny hook of every middleware: what connect's clients see is an error with a code, and
// with a google.rpc.RetryInfo if trying again helps.
func deny(w http.ResponseWriter, r *http.Request, d policy.Denial) {
	// The reason is for clients. Its cause, d.Err, is for nethttp.OnError.
	denial := connect.NewError(codeOf(d.Reason), errors.New(string(d.Reason)))
	if d.RetryAfter > 0 {
		if detail, err := connect.NewErrorDetail(&errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)}); err == nil {
			denial.AddDetail(detail)
		}
	}
	_ = errorWriter.Write(w, r, denial) // the client may have left
}

// codeOf is what a reason is in connect.
func codeOf(reason policy.Reason) connect.Code {
	switch reason {
	case policy.QuotaExceeded, policy.KeyQuotaExceeded, policy.TooManyAtOnce:
		return connect.CodeResourceExhausted
	case policy.Locked, policy.InFlight:
		return connect.CodeAborted
	case policy.KeyMissing, policy.KeyMalformed, policy.KeyReused, policy.BodyTooLarge, policy.BodyUnreadable, policy.FenceMissing:
		return connect.CodeInvalidArgument
	case policy.ResponseNotRetained, policy.OutcomeUnknown, policy.StaleFence:
		return connect.CodeFailedPrecondition
	case policy.ReducedCapacity:
		return connect.CodeUnavailable
	default: // policy.InternalError
		return connect.CodeInternal
	}
}
