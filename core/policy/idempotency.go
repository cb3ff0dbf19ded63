package policy

import (
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// ErrMaxRun is the cause ([context.Cause]) with which the context of a guarded handler ends that
// ran for longer than [MaxRun].
var ErrMaxRun = errors.New("policy: the handler ran for longer than MaxRun")

// MaxRun bounds the life of a guarded handler's context: 5 minutes if not set. A client that leaves
// does not end that context, so without a bound nothing would. When the time is over the context
// ends with the cause [ErrMaxRun], and what the handler then answers is kept or released as ever:
// it is the handler that ends its work. A deadline of the request's own, if it is earlier, counts.
// It panics if d is less than a millisecond.
func MaxRun(d time.Duration) GuardOption {
	if d < minWait {
		panic(fmt.Sprintf("policy: MaxRun: %v is less than %v", d, minWait))
	}
	return setting.Func(func(s *setting.Settings) { s.MaxRun = d })
}

// StatusOption is an option of the middleware whose answers can say what did not go as it should.
type StatusOption interface {
	GuardOption
	RateLimitOption
	RPCRateLimitOption
}

// StatusHeaders adds "RateLimit-Status: bypassed" to the answer to a request that [FailOpen] let
// pass. (That a guard, a lock, a permit or a fence was bypassed is always on the answer.) It adds
// "Idempotency-Status: unconfirmed" to an answer if the store did not confirm that it is recorded:
// the operation ran, and a repeat may be refused, or run again where the guard allows re-runs,
// until the record is made in the background. In gRPC it is header metadata. An answer whose header
// has been sent, as that of a stream, cannot carry it.
func StatusHeaders() StatusOption {
	return setting.Func(func(s *setting.Settings) { s.StatusHeaders = true })
}
