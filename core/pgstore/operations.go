package pgstore

import "github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/pgstore"

// The operations of calls.
var (
	opPing            = statement.Operation{Name: "ping", Share: statement.ReleaseShare}
	opSweep           = statement.Operation{Name: "sweep"}
	opTakeTokens      = statement.Operation{Name: "take_tokens"} // or settle
	opHoldTokens      = statement.Operation{Name: "hold_tokens"}
	opResetTokens     = statement.Operation{Name: "reset_tokens"}
	opBeginOperation  = statement.Operation{Name: "begin_operation"}
	opSettleOperation = statement.Operation{Name: "settle_operation"} // or abandon, or mark
	opRenewOperations = statement.Operation{Name: "renew_operations", Share: statement.RenewalShare}
	opAcquireLease    = statement.Operation{Name: "acquire_lease"} // also repeated by a waiter
	// opReleaseLeases is for releases, downgrades and revocations.
	opReleaseLeases = statement.Operation{Name: "release_leases", Share: statement.ReleaseShare}
	opRenewLeases   = statement.Operation{Name: "renew_leases", Share: statement.RenewalShare}
	opBeat          = statement.Operation{Name: "beat", Share: statement.RenewalShare} // of waiters
	opPutTask       = statement.Operation{Name: "put_task"}                            // or revive
	opCancelTask    = statement.Operation{Name: "cancel_task"}
	opTakeTasks     = statement.Operation{Name: "take_tasks"} // or await
	opRenewTasks    = statement.Operation{Name: "renew_tasks", Share: statement.RenewalShare}
	opSettleTasks   = statement.Operation{Name: "settle_tasks", Share: statement.ReleaseShare}
	opDocuments     = statement.Operation{Name: "documents"}
	opLatch         = statement.Operation{Name: "latch"}
	opInspect       = statement.Operation{Name: "inspect"}
)

var operations = []statement.Operation{
	opPing, opSweep, opTakeTokens, opHoldTokens, opResetTokens,
	opBeginOperation, opSettleOperation, opRenewOperations,
	opAcquireLease, opReleaseLeases, opRenewLeases, opBeat,
	opPutTask, opCancelTask, opTakeTasks, opRenewTasks, opSettleTasks, opDocuments, opLatch, opInspect,
}
