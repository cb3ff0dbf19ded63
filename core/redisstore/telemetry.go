package redisstore

import "github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/redisstore"

// The operations of the store in telemetry.
var (
	opTakeTokens      = script.Operation{Name: "take_tokens"} // or settle
	opHoldTokens      = script.Operation{Name: "hold_tokens"}
	opResetTokens     = script.Operation{Name: "reset_tokens"}
	opBeginOperation  = script.Operation{Name: "begin_operation"}
	opReadResult      = script.Operation{Name: "begin_operation", Reads: true} // the second call of begin
	opSettleOperation = script.Operation{Name: "settle_operation"}             // or abandon, or mark
	opRenewOperations = script.Operation{Name: "renew_operations"}
	opAcquireLease    = script.Operation{Name: "acquire_lease"}  // also repeated by a waiter
	opReleaseLeases   = script.Operation{Name: "release_leases"} // or downgrade, or revoke
	opRenewLeases     = script.Operation{Name: "renew_leases"}
	opBeat            = script.Operation{Name: "beat", AnyOutcome: true} // of waiters
	opLatch           = script.Operation{Name: "latch"}
	opPutTask         = script.Operation{Name: "put_task"} // or revive
	opCancelTask      = script.Operation{Name: "cancel_task"}
	opTakeTasks       = script.Operation{Name: "take_tasks"} // or wait for tasks
	opRenewTasks      = script.Operation{Name: "renew_tasks"}
	opSettleTasks     = script.Operation{Name: "settle_tasks"}
	opDocuments       = script.Operation{Name: "documents"}
	opReadDocuments   = script.Operation{Name: "documents", Reads: true} // a listing removes what has expired
	opInspectTasks    = script.Operation{Name: "inspect"}                // ends what has expired
	opInspect         = script.Operation{Name: "inspect", Reads: true}
	opEcho            = script.Operation{Name: "echo", Reads: true} // to the store's own inbox
	opPing            = script.Operation{Name: "ping", Reads: true}
	opQuorum          = script.Operation{Name: "quorum"}
)

var operations = []script.Operation{
	opTakeTokens, opHoldTokens, opResetTokens, opBeginOperation, opSettleOperation, opRenewOperations, opAcquireLease, opReleaseLeases, opRenewLeases, opBeat, opLatch,
	opPutTask, opCancelTask, opTakeTasks, opRenewTasks, opSettleTasks, opDocuments, opInspect, opEcho, opPing, opQuorum,
}
