package connectmw

import (
	"errors"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Domain is the domain of the ErrorInfo in refusals.
const Domain = "github.com/lockkeeper/lockkeeper"

// ErrorOf returns the error of a denial, in which [DenialOf] finds the denial. Its code says what
// happened to the call, and its details (google.rpc) what to do about it:
//
//   - resource_exhausted over a limit, with RetryInfo, and QuotaFailure that names the limits;
//     likewise while the key is held, with the name of the limiter, and if the scope has as many
//     idempotency keys as it may, with the name of the guard; or if too many run at once, with
//     RetryInfo;
//   - aborted if another holder has the lock, or a call with the same idempotency key is running,
//     with RetryInfo;
//   - invalid_argument, with BadRequest, if a key is missing or malformed, or on a stream that
//     cannot have one; if the fence of a lock is missing; or, without BadRequest, if the key was
//     used for another request, or the request cannot be fingerprinted;
//   - failed_precondition if the call ran and its answer was not kept, or it is unknown whether it
//     ran; or if the fence is stale;
//   - unavailable if the store is, with RetryInfo;
//   - internal if a key function failed.
//
// Each has an ErrorInfo of [Domain], whose reason is the denial's in capitals, with underscores:
// QUOTA_EXCEEDED. If a call with the same idempotency key is running, or its outcome is unknown,
// the metadata of the ErrorInfo has the ID of the operation, as "operation". With
// policy.ProblemTypes each has Help, with a link to the page that explains the reason. No details
// tell of the error behind the denial.
//
// With the error, or with that of [OnDeny] in its place, interceptors send the header field
// Retry-After if the denial has a delay: it is in seconds, rounded up. There is no Retry-After if
// the handler has run: after ratelimit.PerMessage, or if it gave up without an answer when it lost
// what it held.
//
// gRPC's own retries, by a client's service config, repeat no refusal: a server of net/http sends a
// header first, and gRPC repeats no call after that.
func ErrorOf(d policy.Denial) *connect.Error {
	text := d.Title()
	if d.Detail != "" {
		text = d.Detail
	}
	err := connect.NewError(codeOf(d.Reason), &denied{d, text})
	for _, message := range details(d) {
		if detail, failed := connect.NewErrorDetail(message); failed == nil {
			err.AddDetail(detail)
		}
	}
	return err
}

func codeOf(r policy.Reason) connect.Code {
	switch r {
	case policy.QuotaExceeded, policy.KeyQuotaExceeded, policy.AbnormalUsage, policy.TooManyAtOnce:
		return connect.CodeResourceExhausted
	case policy.Locked, policy.InFlight:
		return connect.CodeAborted
	case policy.KeyMissing, policy.KeyMalformed, policy.KeyReused, policy.StreamRefused, policy.FenceMissing,
		policy.BodyUnreadable:
		return connect.CodeInvalidArgument
	case policy.ResponseNotRetained, policy.OutcomeUnknown, policy.StaleFence:
		return connect.CodeFailedPrecondition
	case policy.ReducedCapacity:
		return connect.CodeUnavailable
	default:
		return connect.CodeInternal
	}
}

func details(d policy.Denial) []proto.Message {
	info := &errdetails.ErrorInfo{Reason: strings.ToUpper(strings.ReplaceAll(string(d.Reason), "-", "_")), Domain: Domain}
	switch {
	case d.Reason == policy.ResponseNotRetained:
		original := "ok"
		if d.OriginalStatus != 0 {
			original = connect.Code(d.OriginalStatus).String() // it was a code
		}
		info.Metadata = map[string]string{"original_code": original}
	case d.Operation != "":
		info.Metadata = map[string]string{"operation": d.Operation}
	}
	list := []proto.Message{info}
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
			Field: "metadata", Description: description, Reason: info.GetReason(),
		}}})
	}
	return list
}

// denied is what the error of a refusal wraps. errors.Is finds the error behind it, such as
// store.ErrUnavailable, which the client does not get.
type denied struct {
	denial policy.Denial
	text   string
}

// Error returns the message that the client gets.
func (e *denied) Error() string { return e.text }

func (e *denied) Unwrap() error { return e.denial.Err }

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
