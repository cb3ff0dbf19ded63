package grpcmw

import (
	"errors"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Domain is the domain of the ErrorInfo in refusals.
const Domain = "github.com/lockkeeper/lockkeeper"

// StatusOf returns the status of a denial. Its code says what happened to the call, and its details
// (google.rpc) what to do about it:
//
//   - RESOURCE_EXHAUSTED over a limit, with RetryInfo, and QuotaFailure that names the limits;
//     likewise while the key is held, with the name of the limiter, and if the scope has as many
//     idempotency keys as it may, with the name of the guard; or if too many run at once, with
//     RetryInfo;
//   - ABORTED if another has the lock, or a call with the same idempotency key is running, with
//     RetryInfo;
//   - INVALID_ARGUMENT, with BadRequest, if a key is missing or malformed, or on a stream that
//     cannot have one; if the fence of a lock is missing; or, without BadRequest, if the key was
//     used for another request, or the request cannot be fingerprinted;
//   - FAILED_PRECONDITION if the call ran and its answer was not kept, or it is unknown whether it
//     ran; or if the fence is stale;
//   - UNAVAILABLE if the store is, with RetryInfo;
//   - INTERNAL if a key function failed.
//
// Each has an ErrorInfo of [Domain], whose reason is the denial's in capitals, with underscores:
// QUOTA_EXCEEDED. If a call with the same idempotency key is running, or its outcome is unknown,
// the metadata of the ErrorInfo has the ID of the operation, as "operation". With
// policy.ProblemTypes each has Help, with a link to the page that explains the reason. No details
// tell of the error behind the denial.
//
// With the status, whichever it is, interceptors send the trailer grpc-retry-pushback-ms, which
// gRPC obeys if the client's service config has a retryPolicy for the code: the delay of RetryInfo
// in milliseconds, rounded up, at most 2^31-1, or -1, which forbids to repeat the call, if there is
// no RetryInfo. It is -1 beside a RetryInfo if the handler has run: after ratelimit.PerMessage, or
// if the handler gave up without an answer when it lost what it held.
func StatusOf(d policy.Denial) *status.Status {
	text := d.Title()
	if d.Detail != "" {
		text = d.Detail
	}
	st, err := status.New(codeOf(d.Reason), text).WithDetails(details(d)...)
	if err != nil {
		return status.New(codeOf(d.Reason), text)
	}
	return st
}

func codeOf(r policy.Reason) codes.Code {
	switch r {
	case policy.QuotaExceeded, policy.KeyQuotaExceeded, policy.AbnormalUsage, policy.TooManyAtOnce:
		return codes.ResourceExhausted
	case policy.Locked, policy.InFlight:
		return codes.Aborted
	case policy.KeyMissing, policy.KeyMalformed, policy.KeyReused, policy.StreamRefused, policy.FenceMissing,
		policy.BodyUnreadable:
		return codes.InvalidArgument
	case policy.ResponseNotRetained, policy.OutcomeUnknown, policy.StaleFence:
		return codes.FailedPrecondition
	case policy.ReducedCapacity:
		return codes.Unavailable
	default:
		return codes.Internal
	}
}

func details(d policy.Denial) []protoadapt.MessageV1 {
	info := &errdetails.ErrorInfo{Reason: strings.ToUpper(strings.ReplaceAll(string(d.Reason), "-", "_")), Domain: Domain}
	switch {
	case d.Reason == policy.ResponseNotRetained:
		info.Metadata = map[string]string{"original_code": codes.Code(d.OriginalStatus).String()}
	case d.Operation != "":
		info.Metadata = map[string]string{"operation": d.Operation}
	}
	list := []protoadapt.MessageV1{info}
	if d.TypeBase != "" {
		list = append(list, &errdetails.Help{Links: []*errdetails.Help_Link{{Description: d.Title(), Url: d.Page()}}})
	}
	if d.RetryAfter > 0 {
		list = append(list, &errdetails.RetryInfo{RetryDelay: durationpb.New(d.RetryAfter)})
	}
	switch d.Reason {
	case policy.QuotaExceeded, policy.KeyQuotaExceeded, policy.AbnormalUsage:
		subject := "limit:"
		if d.Reason == policy.KeyQuotaExceeded {
			subject = "guard:"
		}
		quota := &errdetails.QuotaFailure{}
		for _, name := range d.ViolatedPolicies {
			quota.Violations = append(quota.Violations, &errdetails.QuotaFailure_Violation{Subject: subject + name, Description: d.Title()})
		}
		list = append(list, quota)
	case policy.KeyMissing, policy.KeyMalformed, policy.StreamRefused, policy.FenceMissing:
		description := d.Title()
		if d.Detail != "" {
			description = d.Detail
		}
		list = append(list, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{{
			Field: "metadata", Description: description, Reason: info.Reason,
		}}})
	}
	return list
}

// denied is the error of an interceptor that refused a call. Its status is what the client gets;
// errors.Is finds the error behind it, such as store.ErrUnavailable, which the client does not.
type denied struct {
	denial policy.Denial
	status *status.Status
}

// NewError returns the error with which an interceptor refuses a call, for an OnDeny hook that
// wants another status than that of [StatusOf].
func NewError(d policy.Denial, st *status.Status) error { return &denied{d, st} }

// DenialOf returns the denial in an error that an interceptor of this module returned, for
// interceptors outside it; false if it is another error. The denial's Err is the error behind it,
// for logs: the text of the interceptor's error says nothing of it.
func DenialOf(err error) (policy.Denial, bool) {
	var e *denied
	if errors.As(err, &e) {
		return e.denial, true
	}
	return policy.Denial{}, false
}

// Error returns what the client sees, without the error behind the denial: gRPC sends a client the
// whole text of an error that wraps this one.
func (e *denied) Error() string { return e.status.Err().Error() }

// GRPCStatus is how gRPC finds the status.
func (e *denied) GRPCStatus() *status.Status { return e.status }

func (e *denied) Unwrap() error { return e.denial.Err }
