package redisstore

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/redisstore"

// operation is what a call is for, as telemetry has it.
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
	opBeat            operation = "beat" // of those who wait
	opLatch           operation = "latch"
	opInspect         operation = "inspect"
	opEcho            operation = "echo" // to the store's own inbox
	opPing            operation = "ping"
	opRoute           operation = "route" // finds out which server has what
	opQuorum          operation = "quorum"
)

// reads reports whether an operation writes nothing, so that it may work where others do not.
func (op operation) reads() bool {
	switch op {
	case opInspect, opEcho, opPing, opRoute:
		return true
	default:
		return false
	}
}

// operations are all of them.
var operations = []string{
	string(opTakeTokens), string(opResetTokens), string(opBeginOperation), string(opSettleOperation), string(opRenewOperations),
	string(opAcquireLock), string(opReleaseLock), string(opRenewLocks), string(opAcquirePermits), string(opReleasePermits),
	string(opRenewPermits), string(opBeat), string(opLatch), string(opInspect), string(opEcho), string(opPing), string(opRoute),
	string(opQuorum),
}
