package policy

import (
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// ErrNoKey is returned by a key function if the request does not carry the key. The request is
// refused as the client's mistake (400, INVALID_ARGUMENT), whatever the store's state.
var ErrNoKey = errors.New("policy: the request has no key")

// ErrNotProvided is returned by a key function if the application did not provide the key, such as
// the user whom authentication should have put into the context: a mistake in the wiring. The
// request is refused as the server's mistake (500, INTERNAL). The first such request of a
// middleware is logged with the error's text, which should name the missing value.
var ErrNotProvided = errors.New("policy: the application did not provide the request's key")

// Reason says why a request was refused. The set is closed.
type Reason string

// The reasons, with the HTTP status of each.
const (
	QuotaExceeded       Reason = "quota-exceeded"             // 429: over the rate limit
	KeyQuotaExceeded    Reason = "key-quota-exceeded"         // 429: the scope has its maximum of idempotency keys
	AbnormalUsage       Reason = "abnormal-usage-detected"    // 429: the key is held after it exceeded its limits (Hold)
	ReducedCapacity     Reason = "temporary-reduced-capacity" // 503: no store, no memory for bodies, or full (Overload)
	KeyMissing          Reason = "key-missing"                // 400: a required key, or its scope, is missing
	KeyMalformed        Reason = "key-malformed"              // 400: the key cannot be read, or is too long
	KeyReused           Reason = "key-reused"                 // 422: the key belongs to another request
	InFlight            Reason = "in-flight"                  // 409: a request with the same key is running
	ResponseNotRetained Reason = "response-not-retained"      // 409: it ran, and its answer was not kept
	OutcomeUnknown      Reason = "outcome-unknown"            // 409: it may have run, with an unknown outcome
	Locked              Reason = "locked"                     // 409: requests of the same key run one at a time
	TooManyAtOnce       Reason = "too-many-at-once"           // 429: too many requests run, or keep bodies in memory
	BodyTooLarge        Reason = "body-too-large"             // 413: the request's body cannot be fingerprinted
	BodyUnreadable      Reason = "body-unreadable"            // 400: the request's body broke off, or has no fingerprint
	InternalError       Reason = "internal-error"             // 500: a key function failed
	StreamRefused       Reason = "stream-refused"             // gRPC only: a stream cannot be replayed
	FenceMissing        Reason = "fence-missing"              // 428: the required fence of a lock is missing
	StaleFence          Reason = "stale-fence"                // 412: another holder has had the lock since
)

const (
	ianaProblems = "https://iana.org/assignments/http-problem-types#"
	ownProblems  = "https://github.com/lockkeeper/lockkeeper/blob/main/docs/problems.md#"
)

var reasons = map[Reason]struct {
	status int
	base   string
	title  string
}{
	QuotaExceeded:       {http.StatusTooManyRequests, ianaProblems, "Request cannot be satisfied as assigned quota has been exceeded"},
	KeyQuotaExceeded:    {http.StatusTooManyRequests, ownProblems, "The quota of idempotency keys is used up"},
	AbnormalUsage:       {http.StatusTooManyRequests, ianaProblems, "Request not satisfied due to detection of abnormal request pattern"},
	ReducedCapacity:     {http.StatusServiceUnavailable, ianaProblems, "Request cannot be satisfied due to temporary server capacity constraints"},
	KeyMissing:          {http.StatusBadRequest, ownProblems, "The request lacks a key that it needs"},
	KeyMalformed:        {http.StatusBadRequest, ownProblems, "The request's key cannot be read"},
	KeyReused:           {http.StatusUnprocessableEntity, ownProblems, "The idempotency key was used for another request"},
	InFlight:            {http.StatusConflict, ownProblems, "A request with this idempotency key is being processed"},
	ResponseNotRetained: {http.StatusConflict, ownProblems, "The request was processed, and its response was not retained"},
	OutcomeUnknown:      {http.StatusConflict, ownProblems, "An earlier attempt at this request ended with an unknown outcome"},
	Locked:              {http.StatusConflict, ownProblems, "Another request is working on the same resource"},
	TooManyAtOnce:       {http.StatusTooManyRequests, ownProblems, "Too many requests are being processed at once"},
	BodyTooLarge:        {http.StatusRequestEntityTooLarge, ownProblems, "The request's body is too large"},
	BodyUnreadable:      {http.StatusBadRequest, ownProblems, "The request's body cannot be read"},
	InternalError:       {http.StatusInternalServerError, ownProblems, "Internal error"},
	StreamRefused:       {http.StatusBadRequest, ownProblems, "A stream cannot be protected by an idempotency key"},
	FenceMissing:        {http.StatusPreconditionRequired, ownProblems, "The request lacks the fence of a lock"},
	StaleFence:          {http.StatusPreconditionFailed, ownProblems, "The request is of an earlier holder of the lock"},
}

// Denial is a refusal, as the function of OnDeny gets it. That function writes its own answer; the
// header fields of the refusal (Retry-After, RateLimit, Link) are set already.
type Denial struct {
	Reason Reason
	// Detail is a sentence for the client, or empty.
	Detail string
	// RetryAfter is the time after which to try again; zero if that would not help.
	RetryAfter time.Duration
	// ViolatedPolicies has, depending on Reason,
	//
	//   - the names of the limits that denied the request, for QuotaExceeded;
	//   - the limiter that holds the key, for AbnormalUsage; or
	//   - the guard whose scope has its maximum of records (guard.WithMaxPerScope), for
	//     KeyQuotaExceeded.
	ViolatedPolicies []string
	// Limit is the state of the violated limit that makes the request wait longest: its name, capacity
	// and window, the remaining tokens, and when it is full again. It is zero if Reason is not
	// QuotaExceeded.
	Limit tokenbucket.LimitState
	// OriginalStatus is the status of an answer that was not kept, if Reason is ResponseNotRetained:
	// an HTTP status, or in gRPC a status code.
	OriginalStatus int
	// Operation is the ID of the operation, if Reason is InFlight or OutcomeUnknown. Support finds the
	// operation by it (guard.Guard's InspectID, and logs). It reveals nothing that users sent.
	Operation string
	// TypeBase is the base of [ProblemTypes], or empty.
	TypeBase string
	// Err is the error behind the refusal, or nil. It is for logs; never show it to a client.
	Err error
}

// Status is the denial's HTTP status.
func (d Denial) Status() int { return reasons[d.Reason].status }

// Type is the denial's problem type, a URI.
func (d Denial) Type() string {
	base := reasons[d.Reason].base
	if base == ownProblems && d.TypeBase != "" {
		base = d.TypeBase
	}
	return base + string(d.Reason)
}

// Page is the page that explains the type to people: Type, or the application's own page if there
// is [ProblemTypes], also for a standard type.
func (d Denial) Page() string {
	if d.TypeBase == "" {
		return d.Type()
	}
	return d.TypeBase + string(d.Reason)
}

// Title describes the reason in a few words. It is the same for all denials of that reason.
func (d Denial) Title() string { return reasons[d.Reason].title }

// MarshalJSON returns the denial as a problem of type application/problem+json (RFC 9457).
func (d Denial) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Type             string   `json:"type"`
		Title            string   `json:"title"`
		Status           int      `json:"status"`
		Detail           string   `json:"detail,omitempty"`
		ViolatedPolicies []string `json:"violated-policies,omitempty"`
		OriginalStatus   int      `json:"original-status,omitempty"`
		Operation        string   `json:"operation,omitempty"`
	}{d.Type(), d.Title(), d.Status(), d.Detail, d.ViolatedPolicies, d.OriginalStatus, d.Operation})
}
