package policy

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// ErrMaxRun is the cause ([context.Cause]) of the end of a guarded handler's context after
// [MaxRun].
var ErrMaxRun = errors.New("policy: the handler ran for longer than MaxRun")

// MaxRun bounds the life of a guarded handler's context: 5 minutes if not set. A client that leaves
// does not end that context, so it needs a bound. After that time the context ends with the cause
// [ErrMaxRun]. The handler then ends its work; its answer is kept or released as any other. An
// earlier deadline of the request itself counts. MaxRun panics if d is less than a millisecond.
func MaxRun(d time.Duration) GuardOption {
	if d < minWait {
		panic(fmt.Sprintf("policy: MaxRun: %v is less than %v", d, minWait))
	}
	return setting.Func(func(s *setting.Settings) { s.MaxRun = d })
}

// Retention sets how long the records of a route are kept after their last change, instead of
// guard.WithRetention: 1 s to 366 days. After it, the same key is a new operation. The handler can
// set it for its answer: see Keep and Forget of guard.Attempt. Retention panics if d is out of that
// range, and New if d is less than the guard's lease.
func Retention(d time.Duration) GuardOption {
	if d < time.Second || d > 366*24*time.Hour {
		panic(fmt.Sprintf("policy: Retention: %v is not between 1s and 366 days", d))
	}
	return setting.Func(func(s *setting.Settings) { s.Retention = d })
}

// KeepHeaders keeps only these header fields and trailers of an answer, and the fields for a replay: Content-Type, Content-Encoding, Content-Length, Location and Trailer. Set-Cookie, Date and
// the fields of a connection are never kept; without KeepHeaders all others are. It panics without
// any name, and on an invalid field name; New panics on a name that is never kept.
func KeepHeaders(names ...string) IdempotencyOption {
	kept := fieldNames("KeepHeaders", names)
	return setting.Func(func(s *setting.Settings) { s.KeepFields = kept })
}

// DropHeaders does not keep these header fields and trailers of an answer, such as personal data:
// the first answer has them, and replays do not. It also applies to the fields of [KeepHeaders]. It
// panics without any name, and on an invalid field name.
func DropHeaders(names ...string) IdempotencyOption {
	dropped := fieldNames("DropHeaders", names)
	return setting.Func(func(s *setting.Settings) { s.DropFields = dropped })
}

// fieldNames returns a set of the names of header fields in their canonical form.
func fieldNames(option string, names []string) map[string]bool {
	if len(names) == 0 {
		panic(fmt.Sprintf("policy: %s: no names", option))
	}
	set := make(map[string]bool)
	for _, name := range names {
		if name == "" || strings.ContainsFunc(name, notInToken) {
			panic(fmt.Sprintf("policy: %s: %q is no name of a header field", option, name))
		}
		set[http.CanonicalHeaderKey(name)] = true
	}
	return set
}

// StatusOption is an option of the middleware whose answers can report an exception: a bypass, or
// an unconfirmed record.
type StatusOption interface {
	GuardOption
	RateOption
}

// StatusHeaders adds "RateLimit-Status: bypassed" to the answer to a request that [FailOpen] let
// pass. (The bypass of a guard, a lock, a permit or a fence is always on the answer.) It adds
// "Idempotency-Status: unconfirmed" to an answer if the store did not confirm its record: the
// operation ran, and a repeat may be refused, or run again where the guard allows re-runs, until
// the record is made in the background. In gRPC it is header metadata. An answer whose header has
// been sent, such as a stream's, cannot carry it.
func StatusHeaders() StatusOption {
	return setting.Func(func(s *setting.Settings) { s.StatusHeaders = true })
}
