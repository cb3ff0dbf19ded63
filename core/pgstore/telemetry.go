package pgstore

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/pgstore"

// operation is the purpose of a call, in telemetry.
type operation string

const (
	opPing            operation = "ping"
	opSweep           operation = "sweep"
	opTakeTokens      operation = "take_tokens" // or settle
	opHoldTokens      operation = "hold_tokens"
	opResetTokens     operation = "reset_tokens"
	opBeginOperation  operation = "begin_operation"
	opSettleOperation operation = "settle_operation" // or abandon, or mark
	opRenewOperations operation = "renew_operations"
	opAcquireLease    operation = "acquire_lease"  // also repeated by a waiter
	opReleaseLeases   operation = "release_leases" // or downgrade, or revoke
	opRenewLeases     operation = "renew_leases"
	opBeat            operation = "beat" // of waiters
	opNotify          operation = "notify"
	opLatch           operation = "latch"
	opInspect         operation = "inspect"
)

var operations = []operation{
	opPing, opSweep, opTakeTokens, opHoldTokens, opResetTokens, opBeginOperation, opSettleOperation, opRenewOperations, opAcquireLease,
	opReleaseLeases, opRenewLeases, opBeat, opNotify, opLatch, opInspect,
}
