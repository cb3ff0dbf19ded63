package redisstore

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/redisstore"

// operation is the purpose of a call in telemetry.
type operation string

const (
	opTakeTokens      operation = "take_tokens"
	opResetTokens     operation = "reset_tokens"
	opBeginOperation  operation = "begin_operation"
	opSettleOperation operation = "settle_operation" // or abandon, or mark
	opRenewOperations operation = "renew_operations"
	opAcquireLock     operation = "acquire_lock" // a claim too
	opReleaseLock     operation = "release_lock" // or downgrade, or force
	opRenewLocks      operation = "renew_locks"
	opAcquirePermits  operation = "acquire_permits" // a claim too
	opReleasePermits  operation = "release_permits"
	opRenewPermits    operation = "renew_permits"
	opBeat            operation = "beat" // of waiters
	opLatch           operation = "latch"
	opInspect         operation = "inspect"
	opEcho            operation = "echo" // to the store's own inbox
	opPing            operation = "ping"
	opRoute           operation = "route" // finds the server of a key
	opQuorum          operation = "quorum"
)

// reads reports whether an operation only reads, so that its success does not prove that writes
// work.
func (op operation) reads() bool {
	switch op {
	case opInspect, opEcho, opPing, opRoute:
		return true
	default:
		return false
	}
}

// operations are all values.
var operations = []string{
	string(opTakeTokens), string(opResetTokens), string(opBeginOperation), string(opSettleOperation), string(opRenewOperations),
	string(opAcquireLock), string(opReleaseLock), string(opRenewLocks), string(opAcquirePermits), string(opReleasePermits),
	string(opRenewPermits), string(opBeat), string(opLatch), string(opInspect), string(opEcho), string(opPing), string(opRoute),
	string(opQuorum),
}
